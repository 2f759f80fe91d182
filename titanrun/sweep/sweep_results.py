"""Results of a sweep, read from the files of its runs, best first."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.rundir.late_files import wait_for_files
from titanrun.recipe.rundir.run_files import METRICS, RUN_JSON, STATUS, read_json_or_empty
from titanrun.runs.metric_series import load_metric_series
from titanrun.runs.run_index import ARCHIVE
from titanrun.runs.run_state import get_host_info, get_run_state
from titanrun.runs.run_summary import encode_non_finite, load_run_summary, read_last_metrics
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.early_stopping import MetricCurve
from titanrun.sweep.run_names import collect_paths, format_name_value, shorten_paths

ENDED = "ended early"
FINISHED = "finished"
ARCHIVED = "archived"
# states of runs that a sweep does not start again
DONE_STATES = (FINISHED, ARCHIVED)


@dataclass(frozen=True, slots=True)
class SweepRunResult:
    """Result of one run.

    Name, state, last step, best value of the metric and its step, the varied values, the number of
    its trial in a search, and whether it has finished, which the state `archived` does not tell.
    """

    name: str
    state: str
    step: int
    best_value: float | None
    best_step: int | None
    values: Mapping[str, object]
    trial: int | None = None
    has_finished: bool = False


def locate_run(folder: Path) -> Path:
    """Return where the files of a run are: its own folder, or the archive beside it."""
    archived = folder.parent / ARCHIVE / folder.name
    is_moved = not (folder / RUN_JSON).is_file() and (archived / RUN_JSON).is_file()
    return archived if is_moved else folder


def load_metric_curve(folder: Path, config: SweepConfig) -> MetricCurve:
    """Load the metric of a run, negated if the highest value is best.

    The curve is empty if nothing is logged yet.
    """
    try:
        series = load_metric_series(locate_run(folder) / METRICS, config.metric, "step")
    except ProblemsFound:
        return MetricCurve((), ())
    sign = 1 if config.goal == "min" else -1
    return MetricCurve([int(step) for step in series.x], [sign * value for value in series.y])


def get_sweep_run_state(folder: Path) -> str:
    """Return the state of a run as `titanrun runs` shows it.

    It is `waiting` before the start, and `archived` in the archive.
    """
    if locate_run(folder) != folder:
        return ARCHIVED
    return (
        get_run_state(load_run_summary(folder), get_host_info())
        if (folder / RUN_JSON).is_file()
        else "waiting"
    )


def wait_for_result(folder: Path, *, is_over: bool, print_line: Callable[[str], None]) -> None:
    """Wait until the end of a run is visible, which another machine may have written.

    `is_over` tells that the run is known to have finished; otherwise its status decides. Raise
    ProblemsFound if its end does not appear.
    """
    if is_over or has_finished(folder):
        wait_for_files(
            partial(has_result, folder),
            folder,
            f"the end of run '{folder}'",
            print_line=print_line,
        )


def has_finished(folder: Path) -> bool:
    """Return whether a run has finished, also if it was archived since."""
    return read_json_or_empty(locate_run(folder) / STATUS).get("state") == FINISHED


def has_result(folder: Path) -> bool:
    """Return whether a run has finished and has logged its last step."""
    folder = locate_run(folder)
    status = read_json_or_empty(folder / STATUS)
    step = read_last_metrics(folder / METRICS).get("step", 0)
    return status.get("state") == FINISHED and step >= status.get("step", 0)


def load_sweep_result(
    name: str,
    folder: Path,
    values: Mapping[str, object],
    config: SweepConfig,
    *,
    is_ended: bool,
    trial: int | None = None,
) -> SweepRunResult:
    """Load the result of one run."""
    state = get_sweep_run_state(folder)
    curve = load_metric_curve(folder, config)
    known = [
        (value, step)
        for step, value in zip(curve.steps, curve.values, strict=True)
        if math.isfinite(value)
    ]
    best, at = min(known) if known else (None, None)
    value = None if best is None else best if config.goal == "min" else -best
    step = load_run_summary(locate_run(folder)).step if state != "waiting" else 0
    return SweepRunResult(
        name,
        ENDED if is_ended and state == "preempted" else state,
        step,
        value,
        at,
        values,
        trial,
        has_finished(folder),
    )


def find_missing_metric(
    results: Sequence[SweepRunResult], folder: Path, config: SweepConfig
) -> Problem | None:
    """Return a warning if runs have finished, and none has logged the metric that ranks them.

    Its help names a metric of the first of them.
    """
    finished = [result for result in results if result.has_finished]
    if not finished or any(result.best_value is not None for result in results):
        return None
    try:
        load_metric_series(locate_run(folder / finished[0].name) / METRICS, config.metric, "step")
    except ProblemsFound as found:
        message = f"no run has logged '{config.metric}', the metric that ranks the runs"
        return replace(found.problems[0], message=message, severity="warning")
    return None


def sort_best_first(results: Sequence[SweepRunResult], goal: str) -> list[SweepRunResult]:
    """Sort by the metric; runs without a value come last."""
    sign = 1 if goal == "min" else -1
    return sorted(
        results, key=lambda result: (result.best_value is None, sign * (result.best_value or 0.0))
    )


def build_result_rows(results: Sequence[SweepRunResult], config: SweepConfig) -> list[list[str]]:
    """Build a header and one row per result, best first, with a column per varied value."""
    paths = collect_paths([result.values for result in results])
    short = shorten_paths(paths)
    is_search = any(result.trial is not None for result in results)
    head = [
        "run",
        *(["trial"] if is_search else []),
        "state",
        "step",
        config.metric,
        "at step",
        *(short[path] for path in paths),
    ]
    ordered = sort_best_first(results, config.goal)
    return [
        head,
        *(
            [
                *format_result_cells(result),
                *(format_name_value(result.values.get(path)) for path in paths),
            ]
            for result in ordered
        ),
    ]


def format_result_cells(result: SweepRunResult) -> list[str]:
    """Return the first columns of a result."""
    value = "" if result.best_value is None else f"{result.best_value:.5f}"
    return [
        result.name,
        *([] if result.trial is None else [str(result.trial)]),
        result.state,
        str(result.step),
        value,
        "" if result.best_step is None else str(result.best_step),
    ]


def sweep_result_to_dict(result: SweepRunResult, config: SweepConfig) -> dict[str, Any]:
    """Convert a result to a JSON object."""
    numbers = {
        "metric": config.metric,
        "value": encode_non_finite(result.best_value),
        "at_step": result.best_step,
    }
    return {
        "run": result.name,
        **({} if result.trial is None else {"trial": result.trial}),
        "state": result.state,
        "step": result.step,
        **numbers,
        "values": dict(result.values),
    }
