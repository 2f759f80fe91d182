"""Early stopping of sweep runs that fall behind the others at the same step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from titanrun.sweep.config import (
    EarlyStoppingConfig,
    HalvingConfig,
    MedianConfig,
    SteppedConfig,
)

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


@dataclass(frozen=True, slots=True)
class EarlyStopDecision:
    """Decision on one run.

    Args:
        stop_reason: Why to stop the run, None if it continues.
        last_passed_rung: Last rung of `halving` that the run has passed, 0 for none.
        is_failure: Whether the run has failed, instead of falling behind.
    """

    stop_reason: str | None
    last_passed_rung: int = 0
    is_failure: bool = False


def judge_run(
    config: EarlyStoppingConfig,
    name: str,
    curves: Mapping[str, MetricCurve],
    *,
    last_passed_rung: int = 0,
) -> EarlyStopDecision:
    """Decide whether a run is stopped early by `median` or `halving`.

    Args:
        config: The rule.
        name: The run to judge.
        curves: The curves of all started runs, by name.
        last_passed_rung: The rung of the previous decision on this run. It and the rungs before it
            are not judged again: a promotion is never taken back.
    """
    assert isinstance(config, SteppedConfig)
    if curves[name].last_step < config.first_step:
        return EarlyStopDecision(None, last_passed_rung)
    decision: EarlyStopDecision = config.load_builder()(config, name, curves, last_passed_rung)
    return decision


def judge_by_median(
    config: MedianConfig, name: str, curves: Mapping[str, MetricCurve], last_passed_rung: int
) -> EarlyStopDecision:
    """Judge a run by the median of the others' best values."""
    return EarlyStopDecision(find_median_stop_reason(name, curves), last_passed_rung)


def find_median_stop_reason(name: str, curves: Mapping[str, MetricCurve]) -> str | None:
    """Return why a run is worse than the median at its last step, or None if it is not."""
    own = curves[name]
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


def judge_by_rungs(
    config: HalvingConfig,
    name: str,
    curves: Mapping[str, MetricCurve],
    last_passed_rung: int,
) -> EarlyStopDecision:
    """Judge a run at each new rung that it has reached, by asynchronous successive halving.

    It passes a rung if it is among the best 1 / factor of the runs that have reached the rung so
    far (https://arxiv.org/abs/1810.05934). Where fewer than `factor` runs have reached a rung, it
    passes too, because it would otherwise wait for runs that may never start.
    """
    factor = max(2, config.factor or DEFAULT_FACTOR)
    rung = config.first_step
    while rung <= curves[name].last_step:
        if rung > last_passed_rung:
            reason = find_rung_stop_reason(rung, factor, name, curves)
            if reason is not None:
                return EarlyStopDecision(reason, last_passed_rung)
            last_passed_rung = rung
        rung *= factor
    return EarlyStopDecision(None, last_passed_rung)


def find_rung_stop_reason(
    rung: int, factor: int, name: str, curves: Mapping[str, MetricCurve]
) -> str | None:
    """Return the reason for stopping a run at a rung, or None if it passes."""
    reached = {
        other: curve.get_best_until(rung)
        for other, curve in curves.items()
        if curve.last_step >= rung
    }
    num_promoted = len(reached) // factor
    better = sum(value < reached[name] for value in reached.values())
    if num_promoted and better >= num_promoted:
        return (
            f"it ranks {better + 1} of {len(reached)} at step {rung}, "
            f"only the best {num_promoted} continue"
        )
    return None
