"""`titanrun report`: write an HTML report of a run as one shareable page."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.html_page import (
    build_html_page,
    format_html_details,
    format_html_paragraph,
    format_html_pre,
    format_html_table,
)
from titanrun.cli.messages import print_note
from titanrun.cli.plots import svg
from titanrun.cli.plots.axes import PlotCurve
from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.components.metrics.spec.metric_format import (
    HIDDEN_METRICS,
    METRIC_FORMATS,
    format_elapsed_time,
)
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.recipe.resolving.provenance import UNWRITTEN_SOURCES, list_data_leaves
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RESOLVED,
    RUN_JSON,
    SOURCES,
    get_starts,
    read_json_or_empty,
)
from titanrun.runs.log_problems import collect_log_problems
from titanrun.runs.metric_series import MetricSeries, downsample_series
from titanrun.runs.run_state import get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary

SUMMARY = (
    "Write an HTML report of a run: its curves, every setting with its source, machine and "
    "packages, checkpoints, and the logged problems. The page is self-contained."
)
EXAMPLES = """  titanrun report runs/first  writes runs/first/report.html
  titanrun report runs/first -o first.html"""
# points that an image of this width can show
MAX_POINTS = 800
LOSS_METRICS = ("loss", "validation/loss")
MIB = 1024**2


def run(arguments: list[str]) -> int:
    """Write the page."""
    parser = CommandParser("report", SUMMARY, EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="output file; default: report.html in the run directory",
    )
    options = parser.parse_args(arguments)
    folder = Path(options.run)
    if not (folder / RUN_JSON).is_file():
        raise problem_error(
            "file",
            f"'{folder}' is not a run directory: it has no {RUN_JSON}",
            hint="pass a folder written by titanrun train",
        )
    out = Path(options.output) if options.output else folder / "report.html"
    text = build_run_report(folder)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise problem_error(
            "file",
            f"cannot write '{out}': {(error.strerror or str(error)).lower()}",
            hint="set the file with -o",
        ) from None
    print_note(options, f"wrote {out}")
    return 0


def build_run_report(folder: Path) -> str:
    """Return the text of the page."""
    entry = load_run_summary(folder)
    state = get_run_state(entry, get_host_info())
    starts = get_starts(read_json_or_empty(folder / RUN_JSON))
    sections = [
        ("Summary", build_summary_section(entry, state, starts)),
        ("Curves", build_curves_section(folder)),
        ("Problems met", build_problems_section(folder, entry)),
        ("Recipe", build_recipe_section(folder)),
        ("Checkpoints", build_checkpoints_section(folder)),
        ("Machine and packages", build_environment_section(starts[-1] if starts else {})),
        ("Starts", build_starts_section(starts)),
    ]
    return build_html_page(str(entry.name or folder.name), f"{folder.resolve()}, {state}", sections)


def build_summary_section(entry: RunSummary, state: str, starts: list[dict[str, Any]]) -> str:
    """Build the section about progress and results."""
    steps = f"{entry.step} of {entry.steps}" if entry.steps else str(entry.step)
    commit = (
        f"{entry.commit}{', with uncommitted changes' if entry.dirty else ''}"
        if entry.commit
        else None
    )
    facts = {
        "state": state,
        "step": steps,
        "loss": entry.loss,
        "best validation loss": entry.validation,
        "tokens/s per device": None if entry.tps is None else f"{entry.tps:,.0f}",
        "started": entry.started,
        "duration": None if entry.seconds is None else format_elapsed_time(entry.seconds),
        "starts": len(starts),
        "commit": commit,
        "tags": ", ".join(entry.tags) or None,
    }
    return format_html_table(
        ("", ""), [(name, value) for name, value in facts.items() if value is not None]
    )


def build_curves_section(folder: Path) -> str:
    """Build a plot for each metric; validation and training loss share one."""
    path = folder / METRICS
    try:
        lines = read_metrics(path) if path.exists() else []
    except ProblemsFound as error:
        return format_html_paragraph(error.problems[0].message, "bad")
    names = dict.fromkeys([*METRIC_FORMATS, *(name for line in lines for name in line)])
    drawn = {
        name: curve
        for name in names
        if name not in HIDDEN_METRICS and (curve := build_metric_curve(name, lines)) is not None
    }
    if not drawn:
        return format_html_paragraph("no step was logged", "soft")
    together = [
        [drawn[name] for name in LOSS_METRICS if name in drawn],
        *([drawn[name]] for name in drawn if name not in LOSS_METRICS),
    ]
    pictures = [
        svg.plot_svg(some, title=" and ".join(curve.name for curve in some), x_label="step")
        for some in together
        if some
    ]
    return f'<div class="curves">\n{"".join(pictures)}</div>'


def build_metric_curve(name: str, lines: list[dict[str, Any]]) -> PlotCurve | None:
    """Build the curve of a metric over the steps, at visible resolution.

    Return None if no line has it as a number.
    """
    points = [
        (line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)
    ]
    if not points:
        return None
    few = downsample_series(
        MetricSeries([float(step) for step, _ in points], [float(value) for _, value in points]),
        MAX_POINTS,
    )
    return PlotCurve(name, few.x, few.y)


def build_problems_section(folder: Path, entry: RunSummary) -> str:
    """Build the section of logged warnings and errors, and of the end of the run."""
    found = collect_log_problems(folder)
    if not found:
        return format_html_paragraph("none", "soft")
    rows = [
        (met.time, met.level, met.log, met.text, met.count if met.count > 1 else "")
        for met in found
    ]
    return format_html_table(("first at", "", "log", "what", "times"), rows, right_aligned=(4,))


def build_recipe_section(folder: Path) -> str:
    """Build the section of written values with origins, other settings, and the recipe file."""
    try:
        leaves = list_data_leaves(dump_config(load_resolved(folder / RESOLVED)))
        text = (folder / RESOLVED).read_text(encoding="utf-8")
    except (ProblemsFound, OSError) as error:
        return format_html_paragraph(f"it cannot be read: {error}", "bad")
    origins = read_json_or_empty(folder / SOURCES).get("values") or {}
    rows = [
        (
            format_path(path),
            to_flow_yaml(value),
            format_recorded_source(origins.get(format_path(path)) or {}),
        )
        for path, value in leaves
    ]
    written = [row for row in rows if row[2] not in UNWRITTEN_SOURCES]
    rest = [row for row in rows if row[2] in UNWRITTEN_SOURCES]
    head = ("setting", "value", "from")
    parts = [
        format_html_table(head, written, code_columns=(0, 1, 2)),
        format_html_details(
            f"{len(rest)} default settings",
            format_html_table(head, rest, code_columns=(0, 1, 2)),
        ),
        format_html_details(RESOLVED, format_html_pre(text)),
    ]
    return "\n".join(parts)


def format_recorded_source(source: Mapping[str, Any]) -> str:
    """Format the source of a value: `recipe.yaml:14:7`, an override, or who chose it."""
    if "file" not in source:
        return str(source.get("source", "default"))
    place = f"{source['file']}:{source.get('line')}:{source.get('column')}"
    return place if source.get("source") == "file" else f"{place} ({source.get('source')})"


def build_checkpoints_section(folder: Path) -> str:
    """Build the section of existing checkpoints."""
    rows = [
        build_checkpoint_row(step, path) for step, path in get_checkpoints_by_step(folder).items()
    ]
    head = ("step", "holds", "MiB", "saved at", "validation loss", "folder")
    return (
        format_html_table(head, rows, right_aligned=(0, 2), code_columns=(5,))
        if rows
        else format_html_paragraph("none", "soft")
    )


def build_checkpoint_row(step: int, path: Any) -> tuple[object, ...]:
    """Build the row of one checkpoint from its manifest."""
    try:
        manifest = read_manifest(path)
    except ProblemsFound as error:
        return (step, f"damaged: {error.problems[0].message}", "", "", "", path.name)
    return (
        step,
        manifest.holds,
        f"{manifest.size / MIB:.1f}",
        manifest.saved_at,
        manifest.validation_loss,
        path.name,
    )


def build_environment_section(start: Mapping[str, Any]) -> str:
    """Build the section about machine and packages of the last start."""
    environment = dict(start.get("environment") or {})
    packages = environment.pop("packages", None) or {}
    facts = [
        *iter_facts(start.get("machine") or {}),
        *iter_facts(start.get("decided") or {}),
        *iter_facts(environment),
    ]
    listed = format_html_table(
        ("package", "version"), sorted(packages.items()), code_columns=(0, 1)
    )
    return (
        format_html_table(("", ""), facts, code_columns=(1,))
        + "\n"
        + format_html_details(f"{len(packages)} packages", listed)
    )


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


def build_starts_section(starts: list[dict[str, Any]]) -> str:
    """Build the section of all starts with their commands and changes."""
    rows = [
        (
            start.get("time"),
            " ".join(start.get("argv") or []),
            "; ".join(start.get("changes") or []),
        )
        for start in starts
    ]
    return format_html_table(("time", "command", "changed"), rows, code_columns=(1, 2))
