"""Early stopping of sweep runs that fall behind the others at the same step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from titanrun.sweep.config import EarlyStoppingConfig

DEFAULT_FACTOR = 3
# a median of fewer values is not meaningful
MIN_CURVES_FOR_MEDIAN = 3


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """Metric of one run by ascending step. Lower is better."""

    steps: Sequence[int]
    values: Sequence[float]

    def get_best_until(self, step: int) -> float:
        """Return the best value up to a step, or infinity if there is no value.

        NaN counts as infinity.
        """
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
        """Last logged step, 0 before the first."""
        return self.steps[-1] if self.steps else 0


def find_early_stop_reason(
    config: EarlyStoppingConfig, name: str, curves: Mapping[str, MetricCurve]
) -> str | None:
    """Return the reason for stopping a run early, or None if it continues.

    `curves` are those of all started runs, by name.
    """
    own = curves[name]
    if own.last_step < config.first_step:
        return None
    if config.name == "halving":
        return find_halving_stop_reason(config, name, curves)
    step = own.last_step
    others = [
        curve.get_best_until(step)
        for other, curve in curves.items()
        if other != name and curve.last_step >= step
    ]
    if len(others) < MIN_CURVES_FOR_MEDIAN or own.get_best_until(step) <= median(others):
        return None
    return (
        f"its best value {own.get_best_until(step):.5g} is worse than the median "
        f"{median(others):.5g} of {len(others)} other runs at step {step}"
    )


def find_halving_stop_reason(
    config: EarlyStoppingConfig, name: str, curves: Mapping[str, MetricCurve]
) -> str | None:
    """Return the reason for stopping a run by successive halving, or None if it continues.

    At each rung that it has reached, the run must be among the best of the runs that have reached
    it too.
    """
    factor = max(2, config.factor or DEFAULT_FACTOR)
    rung = config.first_step
    while rung <= curves[name].last_step:
        reached = {
            other: curve.get_best_until(rung)
            for other, curve in curves.items()
            if curve.last_step >= rung
        }
        going_on = len(reached) // factor
        better = sum(value < reached[name] for value in reached.values())
        if going_on and better >= going_on:
            return (
                f"it ranks {better + 1} of {len(reached)} at step {rung}, "
                f"only the best {going_on} continue"
            )
        rung *= factor
    return None
