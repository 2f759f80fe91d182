"""The settings of a run with their origins, its machine, and where it comes from."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.recipe.resolving.provenance import UNWRITTEN_SOURCES, list_data_leaves
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import find_enclosing_run
from titanrun.recipe.rundir.run_files import RESOLVED, RUN_JSON, SOURCES, read_json_or_empty
from titanrun.recipe.rundir.stage_runs import list_stage_ids
from titanrun.report.html_page import (
    escape_name,
    format_html_details,
    format_html_paragraph,
    format_html_pre,
    format_html_table,
)
from titanrun.report.overview import format_time
from titanrun.report.report_data import ReportRun
from titanrun.runs.log_problems import LOGS, collect_log_problems

# what of a start's environment tells whose machine it was
PRIVATE_FACTS = ("host", "user", "cwd", "boot_id", "variables", "packages")
MAX_LOG_LINES = 400


def build_settings_section(run: ReportRun) -> str:
    """Build the section of written values with origins, other settings, and the recipe file."""
    try:
        leaves = list_data_leaves(dump_config(load_resolved(run.folder / RESOLVED)))
        text = (run.folder / RESOLVED).read_text(encoding="utf-8")
    except (ProblemsFound, OSError) as error:
        return format_html_paragraph(run.redact(f"it cannot be read: {error}"), "bad")
    origins = read_json_or_empty(run.folder / SOURCES).get("values") or {}
    rows = [
        (
            format_path(path),
            run.redact(to_flow_yaml(value)),
            run.redact(format_recorded_source(origins.get(format_path(path)) or {})),
        )
        for path, value in leaves
    ]
    written = [row for row in rows if row[2] not in UNWRITTEN_SOURCES]
    rest = [row for row in rows if row[2] in UNWRITTEN_SOURCES]
    head, code = ("setting", "value", "from"), (0, 1, 2)
    parts = [
        format_html_table(head, written, label="written settings", code_columns=code),
        format_html_details(
            f"{len(rest)} default settings",
            format_html_table(head, rest, label="default settings", code_columns=code),
        ),
        format_html_details(RESOLVED, format_html_pre(run.redact(text), RESOLVED)),
    ]
    return "\n".join(parts)


def format_recorded_source(source: Mapping[str, Any]) -> str:
    """Format the source of a value: `recipe.yaml:14:7`, an override, or who chose it."""
    # the place of an override is a column of the command, which the report shows as a whole
    if "file" not in source or source.get("source") == "override":
        return str(source.get("source", "default"))
    place = f"{source['file']}:{source.get('line')}:{source.get('column')}"
    return place if source.get("source") == "file" else f"{place} ({source.get('source')})"


def build_machine_section(run: ReportRun) -> str:
    """Build the section about the machine of the last start, and with paths about its packages."""
    environment = dict(run.last_start.get("environment") or {})
    packages = environment.get("packages") or {}
    shown = {
        name: value
        for name, value in environment.items()
        if name != "packages" and (run.has_paths or name not in PRIVATE_FACTS)
    }
    parts = (run.last_start.get("machine") or {}, run.last_start.get("decided") or {}, shown)
    # both parts name the device
    facts = dict.fromkeys(
        (name, run.redact(value)) for part in parts for name, value in iter_facts(part)
    )
    table = format_html_table(("fact", "value"), facts, label="machine", code_columns=(1,))
    if not run.has_paths:
        return table
    listed = format_html_table(
        ("package", "version"), sorted(packages.items()), label="packages", code_columns=(0, 1)
    )
    return f"{table}\n{format_html_details(f'{len(packages)} packages', listed)}"


def iter_facts(data: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested facts, each with its path in words."""
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from iter_facts(value, f"{before}{name} ")
        elif value not in (None, [], {}):
            yield (
                f"{before}{name}".replace("_", " "),
                value if isinstance(value, str) else json.dumps(value),
            )


def build_lineage_section(run: ReportRun) -> str:
    """Build the section about the run's parent, its forks, its stages, and all of its starts."""
    lines = []
    parent = run.record.get("parent")
    if isinstance(parent, Mapping):
        checkpoint = run.redact(str(parent.get("checkpoint")))
        lines.append(f"It began from step {parent.get('step')} of {checkpoint}.")
    lines.extend(f"{name} began from step {step} of this run." for name, step in find_forks(run))
    stages = list_stage_ids(run.folder)
    if stages:
        own = run.folder.absolute().name
        order = ", ".join(stages)
        lines.append(f"It is stage {stages.index(own) + 1} of {len(stages)}: {order}.")
    said = "".join(f"<li>{escape_name(line)}</li>" for line in lines)
    rows = [
        (
            format_time(str(start.get("time") or "")),
            run.redact(" ".join(start.get("argv") or [])),
            run.redact("; ".join(start.get("changes") or [])),
        )
        for start in run.starts
    ]
    table = format_html_table(
        ("started", "command", "changed"), rows, label="starts", code_columns=(1, 2)
    )
    return (f"<ul>{said}</ul>\n" if said else "") + table


def find_forks(run: ReportRun) -> list[tuple[str, object]]:
    """Return the names of the runs beside this one that began from it, with the step."""
    found = []
    own = run.folder.resolve()
    for record in sorted(own.parent.glob(f"*/{RUN_JSON}")):
        parent = read_json_or_empty(record).get("parent")
        if record.parent == own or not isinstance(parent, Mapping):
            continue
        origin = find_enclosing_run(Path(str(parent.get("checkpoint"))))
        if origin is not None and origin.resolve() == own:
            found.append((record.parent.name, parent.get("step")))
    return found


def build_problems_section(run: ReportRun) -> str:
    """Build the section of logged warnings and errors."""
    found = collect_log_problems(run.folder)
    if not found:
        return format_html_paragraph("none", "soft")
    rows = [
        (met.time, met.level, met.log, run.redact(met.text), met.count if met.count > 1 else "")
        for met in found
    ]
    return format_html_table(
        ("first at", "level", "log", "what", "times"), rows, label="problems", right_aligned=(4,)
    )


def build_log_section(run: ReportRun) -> str:
    """Build the section of the last lines of each log."""
    parts = []
    for log in sorted((run.folder / LOGS).glob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        text = run.redact("\n".join(lines[-MAX_LOG_LINES:]))
        title = (
            f"{log.name}, last {MAX_LOG_LINES} lines" if len(lines) > MAX_LOG_LINES else log.name
        )
        parts.append(format_html_details(title, format_html_pre(text, log.name)))
    return "\n".join(parts) or format_html_paragraph("none", "soft")
