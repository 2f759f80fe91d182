"""The HTML report of one run, or of several with what differs between them first."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from titanrun.config.serialize import to_flow_yaml
from titanrun.report.curves import build_curves_section
from titanrun.report.figures import NONE, format_duration, format_loss, format_speed, format_whole
from titanrun.report.html_page import build_html_page, format_html_paragraph, format_html_table
from titanrun.report.overview import (
    build_checkpoints_section,
    build_figures_section,
    build_header,
)
from titanrun.report.report_data import ReportRun, load_report_run
from titanrun.report.settings import (
    build_lineage_section,
    build_log_section,
    build_machine_section,
    build_problems_section,
    build_settings_section,
)
from titanrun.runs.lineage import compute_step_offset, find_related_ancestors
from titanrun.runs.metric_series import MetricSeries
from titanrun.runs.run_comparison import ComparisonRow, compare_runs, load_related_runs

GROUPS = {
    "outcome": "Results",
    "numerics": "Settings that change the result",
    "performance": "Settings that change the speed",
    "bookkeeping": "Settings that change neither results nor speed",
    "surroundings": "Code and machine",
}
SETTING_GROUPS = ("numerics", "performance", "bookkeeping")
FORMATS = {
    "loss": format_loss,
    "best validation loss": format_loss,
    "tokens/s": format_speed,
    "seconds": format_duration,
    "step": format_whole,
}


def build_run_report(
    folders: Sequence[Path], *, has_paths: bool = False, has_log: bool = False
) -> str:
    """Return the text of the page. Raise ProblemsFound if several runs cannot be compared."""
    runs = name_apart([load_report_run(folder, has_paths=has_paths) for folder in folders])
    if len(runs) > 1:
        return build_comparison(runs, has_log=has_log)
    (run,) = runs
    sections = [("Result", build_figures_section(run)), ("Curves", build_curves_section(runs))]
    sections += build_detail_sections(run, has_log=has_log)
    return build_html_page(f"{run.name}: {run.state}", build_header(runs), sections)


def name_apart(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """Return the runs; those that share a name are named by their folders."""
    names = [run.name for run in runs]
    return [
        replace(run, name=run.folder.absolute().name) if names.count(run.name) > 1 else run
        for run in runs
    ]


def build_comparison(runs: Sequence[ReportRun], *, has_log: bool) -> str:
    """Return the page of several runs."""
    sections = [
        ("Differences", build_differences(runs)),
        ("Curves", build_curves_section(place_after_ancestors(runs))),
    ]
    for run in runs:
        parts = [
            f"<details><summary>{name}</summary>\n{content}\n</details>"
            for name, content in build_detail_sections(run, has_log=has_log)
        ]
        sections.append((run.name, build_figures_section(run) + "\n" + "\n".join(parts)))
    title = " and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    return build_html_page(title, build_header(runs), sections)


def build_differences(runs: Sequence[ReportRun]) -> str:
    """Build the section of all results and settings that differ."""
    related, align = load_related_runs([str(run.folder) for run in runs])
    found = [
        row
        for row in compare_runs(related, [run.state for run in runs], align)
        if runs[0].has_paths or row.group != "surroundings" or not row.name.startswith("package")
    ]
    if not found:
        return format_html_paragraph("none", "soft")
    parts = []
    for group in dict.fromkeys(row.group for row in found):
        title = GROUPS.get(group, group)
        rows = [
            (
                redact_all(runs, row.name.replace("seconds", "duration")),
                *(run.redact(text) for run, text in zip(runs, format_row(row), strict=True)),
            )
            for row in found
            if row.group == group
        ]
        head = ("setting" if group in SETTING_GROUPS else "fact", *(run.name for run in runs))
        codes = tuple(range(len(head))) if group in SETTING_GROUPS else ()
        parts.append(f"<h3>{title}</h3>")
        parts.append(format_html_table(head, rows, label=title, code_columns=codes))
    return "\n".join(parts)


def redact_all(runs: Sequence[ReportRun], text: str) -> str:
    """Redact a text that may tell about any of the runs."""
    for run in runs:
        text = run.redact(text)
    return text


def place_after_ancestors(runs: Sequence[ReportRun]) -> list[ReportRun]:
    """Return the runs; the steps of forks go on from those of their relatives."""
    ancestors = find_related_ancestors([run.folder for run in runs])
    offsets = [compute_step_offset(ancestors.get(run.folder, [])) for run in runs]
    return [
        replace(
            run,
            series={
                name: MetricSeries([x + offset for x in series.x], series.y)
                for name, series in run.series.items()
            },
        )
        for run, offset in zip(runs, offsets, strict=True)
    ]


def format_row(row: ComparisonRow) -> list[str]:
    """Format the values of a compared item."""
    known = FORMATS.get("loss" if row.name.startswith("loss at") else row.name)
    return [
        known(value)
        if known is not None and isinstance(value, int | float)
        else format_value(value)
        for value in row.values
    ]


def format_value(value: object) -> str:
    """Format a value as a recipe has it."""
    if value is None:
        return NONE
    return value if isinstance(value, str) else to_flow_yaml(value)


def build_detail_sections(run: ReportRun, *, has_log: bool) -> list[tuple[str, str]]:
    """Return the sections behind the results of a run."""
    sections = [
        ("Problems met", build_problems_section(run)),
        ("Settings", build_settings_section(run)),
        ("Checkpoints", build_checkpoints_section(run)),
        ("Lineage", build_lineage_section(run)),
        ("Machine", build_machine_section(run)),
    ]
    return [*sections, ("Log", build_log_section(run))] if has_log else sections
