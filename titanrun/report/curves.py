"""The charts of a report: one for each metric, by groups."""

from collections.abc import Sequence
from html import escape

from titanrun.components.metrics.spec.metric_format import METRIC_FORMATS
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.report.chart import ChartCurve, build_chart
from titanrun.report.figures import METRIC_UNITS, format_metric_title
from titanrun.report.html_page import format_html_paragraph
from titanrun.report.report_data import TOKENS, ReportRun

LOSSES = ("loss", "validation/loss")
# metrics without a prefix
FIRST_GROUP = ""
GROUP_TITLES = {"time": "Time", "validation": "Validation", "rollout": "Rollouts", "rl": "RL"}


def build_curves_section(runs: Sequence[ReportRun]) -> str:
    """Build the charts of all metrics, of several runs in the same charts."""
    parts = [
        format_html_paragraph(f"{run.name}: {run.metrics_problem}", "bad")
        for run in runs
        if run.metrics_problem is not None
    ]
    charts = group_charts(list_charted_metrics(runs))
    if not charts:
        return "\n".join([*parts, format_html_paragraph("no step was logged", "soft")])
    marks = (
        [] if len(runs) > 1 else [float(step) for step in get_checkpoints_by_step(runs[0].folder)]
    )
    for group, names in charts.items():
        if group != FIRST_GROUP:
            parts.append(f"<h3>{escape(GROUP_TITLES.get(group, group))}</h3>")
        figures = [build_metric_chart(some, runs, marks) for some in names]
        parts.append('<div class="curves">\n' + "\n".join(figures) + "\n</div>")
    if marks:
        parts.append(format_html_paragraph("Ticks above the steps are checkpoints.", "soft"))
    return "\n".join(parts)


def list_charted_metrics(runs: Sequence[ReportRun]) -> list[str]:
    """Return the names of all metrics, the well-known ones first."""
    recorded = dict.fromkeys(name for run in runs for name in run.series)
    names = dict.fromkeys([*METRIC_FORMATS, *recorded])
    return [name for name in names if name in recorded and name != TOKENS]


def group_charts(names: Sequence[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the metrics of each chart by group. Both losses share one."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    losses = tuple(name for name in LOSSES if name in names)
    if losses:
        groups[FIRST_GROUP] = [losses]
    for name in names:
        if name not in LOSSES:
            prefix = name.rpartition("/")[0].partition("/")[0]
            groups.setdefault(prefix, []).append((name,))
    return groups


def build_metric_chart(
    names: Sequence[str], runs: Sequence[ReportRun], marks: Sequence[float]
) -> str:
    """Build the chart of some metrics of some runs."""
    curves: list[ChartCurve] = []
    for at, run in enumerate(runs):
        for name in names:
            if name not in run.series:
                continue
            title = format_metric_title(name)
            label = title if len(runs) == 1 else label_curve(run, name, names)
            # a run keeps its color; its second curve has dashes
            number = len(curves) if len(runs) == 1 else at
            is_dashed = len(runs) > 1 and name != names[0]
            curves.append(ChartCurve(label, name, run.series[name], number, is_dashed=is_dashed))
    first = names[0]
    return build_chart(
        format_metric_title(first), curves, unit=METRIC_UNITS.get(first, ""), marks=marks
    )


def label_curve(run: ReportRun, name: str, names: Sequence[str]) -> str:
    """Return the name of a run's curve among those of other runs."""
    return run.name if name == names[0] else f"{run.name}, {format_metric_title(name).lower()}"
