"""Reports of the metric of a search's runs to its study, whose pruner judges them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.sweep.config import SweepConfig
from titanrun.sweep.early_stopping import EarlyStopDecision
from titanrun.sweep.search_study import SearchStudy
from titanrun.sweep.sweep_results import load_metric_curve

Curve = Sequence[tuple[int, float]]


@dataclass(slots=True)
class CurveReporter:
    """Reporter of curves: each logged step once, in order of the steps.

    Args:
        study: The study, whose lock must be held in `report_values`.
        config: The settings of the sweep.
    """

    study: SearchStudy
    config: SweepConfig
    _reported: dict[int, int] = field(default_factory=dict)
    """Last reported step by trial, of those that this process has looked at."""

    def load_new_values(self, number: int, folder: Path) -> Curve:
        """Load what a run has logged after the last reported step, as steps and values."""
        if number not in self._reported:
            self._reported[number] = self.study.load_trials()[number].reported_step
        return [
            pair for pair in load_curve(folder, self.config) if pair[0] > self._reported[number]
        ]

    def report_values(self, number: int, values: Curve, *, is_over: bool) -> EarlyStopDecision:
        """Report values until the pruner ends the run, which happens only to a run that goes on.

        NaN cannot be compared: a run that logs it has failed.
        """
        assert self.config.early_stopping is not None
        rule, metric = self.config.early_stopping.name, self.config.metric
        for step, value in values:
            if math.isnan(value):
                return EarlyStopDecision(f"its {metric} is NaN at step {step}", is_failure=True)
            is_pruned = self.study.report(number, step, value)
            self._reported[number] = step
            if is_pruned and not is_over:
                return EarlyStopDecision(f"{rule} ends it at step {step} with {metric} {value:.5g}")
        return EarlyStopDecision(None)


def load_curve(folder: Path, config: SweepConfig) -> Curve:
    """Load the metric of a run as it was logged."""
    curve = load_metric_curve(folder, config)
    sign = 1 if config.goal == "min" else -1
    return [(step, sign * value) for step, value in zip(curve.steps, curve.values, strict=True)]
