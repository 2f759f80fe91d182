"""What came of a sweep, read from the files of its runs: the best first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.config.problems import ProblemsFound
from titanrun.ledger.entry import encoded, read_entry
from titanrun.ledger.live import here_now, live_state
from titanrun.ledger.series import read_series
from titanrun.recipe.run_files import METRICS, RUN_JSON
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.names import all_paths, short_paths, text
from titanrun.sweep.stopping import Curve

ENDED = "ended early"


@dataclass(frozen=True, slots=True)
class Result:
    """One run: its name, its state, the last step, the best value of the metric and its step, and what it tried."""

    name: str
    state: str
    step: int
    value: float | None
    at: int | None
    values: Mapping[str, object]


def read_curve(folder: Path, config: SweepConfig) -> Curve:
    """The metric of a run, the sign turned where the highest is best; empty where it has logged none yet."""
    try:
        series = read_series(folder / METRICS, config.metric, "step")
    except ProblemsFound:
        return Curve((), ())
    sign = 1 if config.goal == "min" else -1
    return Curve([int(step) for step in series.x], [sign * value for value in series.y])


def state_of(folder: Path) -> str:
    """The state of a run as the ledger tells it; `waiting` before it began."""
    return (
        live_state(read_entry(folder), here_now()) if (folder / RUN_JSON).is_file() else "waiting"
    )


def read_result(
    name: str, folder: Path, values: Mapping[str, object], config: SweepConfig, *, is_ended: bool
) -> Result:
    """What came of one run."""
    state = state_of(folder)
    curve = read_curve(folder, config)
    known = [
        (value, step)
        for step, value in zip(curve.steps, curve.values, strict=True)
        if math.isfinite(value)
    ]
    best, at = min(known) if known else (None, None)
    value = None if best is None else best if config.goal == "min" else -best
    step = read_entry(folder).step if state != "waiting" else 0
    return Result(
        name, ENDED if is_ended and state == "preempted" else state, step, value, at, values
    )


def best_first(results: Sequence[Result], goal: str) -> list[Result]:
    """By the metric; those without a value last."""
    sign = 1 if goal == "min" else -1
    return sorted(results, key=lambda result: (result.value is None, sign * (result.value or 0.0)))


def in_rows(results: Sequence[Result], config: SweepConfig) -> list[list[str]]:
    """A head and a row for each result, the best first; what varies as columns."""
    paths = all_paths([result.values for result in results])
    short = short_paths(paths)
    head = ["run", "state", "step", config.metric, "at step", *(short[path] for path in paths)]
    ordered = best_first(results, config.goal)
    return [
        head,
        *(
            [*as_cells(result), *(text(result.values.get(path)) for path in paths)]
            for result in ordered
        ),
    ]


def as_cells(result: Result) -> list[str]:
    """The first columns of a result."""
    value = "" if result.value is None else f"{result.value:.5f}"
    return [
        result.name,
        result.state,
        str(result.step),
        value,
        "" if result.at is None else str(result.at),
    ]


def as_data(result: Result, config: SweepConfig) -> dict[str, Any]:
    """A result as a JSON object."""
    numbers = {"metric": config.metric, "value": encoded(result.value), "at_step": result.at}
    return {
        "run": result.name,
        "state": result.state,
        "step": result.step,
        **numbers,
        "values": dict(result.values),
    }
