"""What a report shows of one run, read from its files; damaged files leave gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_files import (
    METRICS,
    RUN_JSON,
    get_mapping,
    get_starts,
    read_json_or_empty,
)
from titanrun.report.private_facts import Redact, build_redaction, keep_text
from titanrun.runs.metric_series import MetricSeries
from titanrun.runs.run_state import get_host_info, get_run_state
from titanrun.runs.run_summary import RunSummary, load_run_summary

TOKENS = "tokens_seen"


@dataclass(frozen=True, slots=True)
class ReportRun:
    """A run of a report.

    Args:
        folder: Run directory.
        name: Its name.
        state: Its current state.
        summary: Its progress and results.
        record: Content of run.json.
        series: Points of each metric.
        redact: Applied to every text that may tell where the run was.
        has_paths: Whether the report tells it.
        metrics_problem: Why metrics.jsonl cannot be read, if it cannot.
    """

    folder: Path
    name: str
    state: str
    summary: RunSummary
    record: Mapping[str, Any]
    series: Mapping[str, MetricSeries]
    redact: Redact = keep_text
    has_paths: bool = False
    metrics_problem: str | None = None
    starts: Sequence[Mapping[str, Any]] = field(default=())

    @property
    def num_tokens(self) -> float | None:
        """Tokens that were trained until the last logged step."""
        return self.series[TOKENS].y[-1] if TOKENS in self.series else None

    @property
    def last_start(self) -> Mapping[str, Any]:
        """The last start, empty if none is recorded."""
        return self.starts[-1] if self.starts else {}


def load_report_run(folder: Path, *, has_paths: bool) -> ReportRun:
    """Load the files of a run directory."""
    summary = load_run_summary(folder)
    record = read_json_or_empty(folder / RUN_JSON)
    starts = get_starts(record)
    hosts = {str(get_mapping(start, "environment").get("host") or "") for start in starts}
    problem, series = None, {}
    try:
        path = folder / METRICS
        series = collect_series(read_metrics(path) if path.exists() else [])
    except ProblemsFound as error:
        problem = error.problems[0].message
    return ReportRun(
        folder,
        str(summary.name or folder.absolute().name),
        get_run_state(summary, get_host_info()),
        summary,
        record,
        series,
        keep_text if has_paths else build_redaction(folder, {*hosts, summary.host or ""}),
        has_paths,
        problem,
        starts,
    )


def collect_series(lines: Sequence[Mapping[str, Any]]) -> dict[str, MetricSeries]:
    """Return the points of each metric by step; the last line of a step counts."""
    points: dict[str, dict[float, float]] = {}
    for line in lines:
        for name, value in line.items():
            if name != "step" and isinstance(value, int | float):
                points.setdefault(name, {})[float(line["step"])] = float(value)
    return {
        name: MetricSeries(sorted(found), [found[step] for step in sorted(found)])
        for name, found in points.items()
    }
