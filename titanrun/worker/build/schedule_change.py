"""What a resumed run says of a learning rate that another schedule than before decides."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from titanrun.components.lr_schedulers.config import LRSchedulerConfig
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.training.engine import Engine

# logged values are exact; other ways to the same rate may differ in the last digits
TOLERANCE = 1e-6


def find_schedule_change(config: LRSchedulerConfig, engine: Engine, metrics: Path) -> str | None:
    """Return a line if the schedule gives the last logged step another rate than it had.

    That is so where the schedule follows a new length of the run, or has other settings, or the
    optimizer has another peak. None if the run starts, or goes on as it was.

    Args:
        config: the schedule of the recipe, for its end.
        engine: the engine with its resumed state.
        metrics: the run's metrics.jsonl.
    """
    if engine.steps_done == 0 or not metrics.is_file():
        return None
    found = find_last_rate(read_metrics(metrics), engine.steps_done)
    if found is None:
        return None
    step, before = found
    peak = float(engine.optimizer.param_groups[0]["peak_lr"])
    # the schedule counts from 0
    expected = peak * engine.lr_schedule.factor(step - 1)
    if math.isclose(before, expected, rel_tol=TOLERANCE, abs_tol=peak * TOLERANCE):
        return None
    following = peak * engine.lr_schedule.factor(engine.steps_done)
    end = getattr(config, "total_steps", None)
    told = "" if end is None else f" that ends at step {end}"
    return (
        f"lr was {before:.3e} at step {step} and is {following:.3e} at step "
        f"{engine.steps_done + 1}, by a schedule with peak {peak:g}{told}"
    )


def find_last_rate(lines: Iterable[Mapping[str, Any]], last_step: int) -> tuple[int, float] | None:
    """Return the last step up to `last_step` whose learning rate was logged, and that rate."""
    rates = {line["step"]: line["lr"] for line in lines if isinstance(line.get("lr"), float)}
    step = max((step for step in rates if step <= last_step), default=None)
    return None if step is None else (step, rates[step])
