"""Which running runs of a sweep are ended early: those that fall behind the others at the same step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from titanrun.sweep.config import EarlyStoppingConfig

DEFAULT_FACTOR = 3
# a median of fewer says little
MOST_LIKELY_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Curve:
    """The metric of one run, by ascending step; lower is better."""

    steps: Sequence[int]
    values: Sequence[float]

    def best_by(self, step: int) -> float:
        """The best value up to a step; infinity where there is none. What is not a number is as bad as can be."""
        return min(
            (
                value
                for at, value in zip(self.steps, self.values, strict=True)
                if at <= step and value == value
            ),
            default=math.inf,
        )

    @property
    def last_step(self) -> int:
        """The last step that was logged, 0 before the first."""
        return self.steps[-1] if self.steps else 0


def falls_behind(config: EarlyStoppingConfig, name: str, curves: Mapping[str, Curve]) -> str | None:
    """Why a run is ended early, in words; None while it goes on. `curves` are those of all runs that have begun, by name."""
    own = curves[name]
    if own.last_step < config.first_step:
        return None
    if config.name == "halving":
        return out_of_rung(config, name, curves)
    step = own.last_step
    others = [
        curve.best_by(step)
        for other, curve in curves.items()
        if other != name and curve.last_step >= step
    ]
    if len(others) < MOST_LIKELY_ENOUGH or own.best_by(step) <= median(others):
        return None
    return f"its best, {own.best_by(step):.5g}, is worse than the median of {len(others)} others by step {step}, {median(others):.5g}"


def out_of_rung(config: EarlyStoppingConfig, name: str, curves: Mapping[str, Curve]) -> str | None:
    """Successive halving: at each rung that a run has reached it has to be among the best of those that have reached it too."""
    factor = max(2, config.factor or DEFAULT_FACTOR)
    rung = config.first_step
    while rung <= curves[name].last_step:
        reached = {
            other: curve.best_by(rung) for other, curve in curves.items() if curve.last_step >= rung
        }
        going_on = len(reached) // factor
        better = sum(value < reached[name] for value in reached.values())
        if going_on and better >= going_on:
            return f"it is number {better + 1} of {len(reached)} at step {rung}, and the best {going_on} go on"
        rung *= factor
    return None
