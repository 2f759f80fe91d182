"""Which runs of a sweep are ended early."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrun.sweep.config import EarlyStoppingConfig, HalvingConfig, MedianConfig
from titanrun.sweep.early_stopping import EarlyStopDecision, MetricCurve, judge_run

MEDIAN = MedianConfig(first_step=3)
HALVING = HalvingConfig(first_step=2, factor=2)


def curve(*values: float) -> MetricCurve:
    return MetricCurve(range(1, len(values) + 1), values)


def find_early_stop_reason(
    config: EarlyStoppingConfig, name: str, curves: dict[str, MetricCurve]
) -> str | None:
    return judge_run(config, name, curves).stop_reason


def test_a_run_worse_than_the_median_of_the_others_ends() -> None:
    others = {"a": curve(5, 4, 3, 2), "b": curve(5, 4, 3.5, 3), "c": curve(5, 5, 4.5, 4)}
    assert find_early_stop_reason(MEDIAN, "own", {**others, "own": curve(5, 4.6, 4.2)}) == (
        "its best value 4.2 is worse than the median 3.5 of 3 other runs at step 3"
    )
    assert find_early_stop_reason(MEDIAN, "own", {**others, "own": curve(5, 4, 3.4)}) is None
    # what it reached earlier counts, and what the others reach later does not
    assert find_early_stop_reason(MEDIAN, "own", {**others, "own": curve(3.4, 9, 9)}) is None


def test_too_early_or_with_too_few_others_nothing_ends() -> None:
    others = {"a": curve(1, 1, 1), "b": curve(1, 1, 1), "c": curve(1, 1)}
    assert find_early_stop_reason(MEDIAN, "own", {**others, "own": curve(9, 9)}) is None
    assert find_early_stop_reason(MEDIAN, "own", {**others, "own": curve(9, 9, 9)}) is None


def test_a_run_whose_loss_is_no_number_falls_behind() -> None:
    others = {name: curve(5, 4, 3) for name in "abc"}
    assert (
        find_early_stop_reason(
            MEDIAN, "own", {**others, "own": curve(math.nan, math.nan, math.nan)}
        )
        is not None
    )


@pytest.mark.parametrize(
    ("own", "ends"),
    [
        ((5, 1, 1, 1), False),
        ((5, 4.5, 4, 4), True),
        ((5, 1, 3, 9), False),
        ((5, 3), False),
        ((5, 4.1), True),
        ((5,), False),
    ],
)
def test_halving_lets_the_best_go_on_at_each_rung(own: tuple[float, ...], ends: bool) -> None:
    others = {"a": curve(5, 2, 2, 2), "b": curve(5, 4, 3, 2.5), "c": curve(5, 4.2, 4.1, 4.1)}
    assert (
        find_early_stop_reason(HALVING, "own", {**others, "own": curve(*own)}) is not None
    ) == ends


def test_the_first_at_a_rung_goes_on() -> None:
    assert find_early_stop_reason(HALVING, "own", {"own": curve(9, 9, 9, 9), "a": curve(1)}) is None


def test_a_promotion_is_never_taken_back() -> None:
    """Row A2: six later starters that are better at step 2 do not end the run that leads."""
    leader = curve(9, 8, *[1.0] * 30)
    decision = judge_run(HALVING, "leader", {"leader": leader})
    assert decision == EarlyStopDecision(None, last_passed_rung=32)
    later = {f"later-{number}": curve(5, 4) for number in range(6)}
    curves = {**later, "leader": leader}
    for last_passed_rung in (2, 32):
        judged = judge_run(HALVING, "leader", curves, last_passed_rung=last_passed_rung)
        assert judged == EarlyStopDecision(None, last_passed_rung=32)
    assert judge_run(HALVING, "leader", curves).stop_reason is not None


class Asha:
    """Rungs of asynchronous successive halving, Algorithm 2 of https://arxiv.org/abs/1810.05934.

    A trial that finishes the work of a rung is promoted if it is among the top |rung| / eta of
    that rung then. What is promoted leaves the rung for good. Two departures, both of sweeps: a
    trial that is not promoted ends, and with fewer than eta trials in its rung it is promoted.
    """

    def __init__(self, eta: int, first_step: int) -> None:
        self.eta = eta
        self.first_step = first_step
        self.rungs: list[dict[str, float]] = []
        self.ended: dict[str, int] = {}

    def report(self, trial: str, step: int, best_loss: float) -> None:
        number = len([None for rung in self.rungs if trial in rung])
        if step != self.first_step * self.eta**number:
            return
        if number == len(self.rungs):
            self.rungs.append({})
        rung = self.rungs[number]
        rung[trial] = best_loss
        top = sorted(rung, key=lambda other: rung[other])[: len(rung) // self.eta]
        if len(rung) >= self.eta and trial not in top:
            self.ended[trial] = step


@given(st.data())
def test_halving_ends_the_runs_that_asha_ends(data: st.DataObject) -> None:
    """Row A2: at every step of a sweep with any order of starts and speeds."""
    eta, first_step = data.draw(st.sampled_from([(2, 1), (2, 3), (3, 2)]))
    config = HalvingConfig(first_step=first_step, factor=eta)
    names = [f"run-{number}" for number in range(data.draw(st.integers(2, 7)))]
    losses = iter(data.draw(st.permutations(range(14 * len(names)))))
    asha = Asha(eta, first_step)
    logged: dict[str, list[float]] = {name: [] for name in names}
    passed = dict.fromkeys(names, 0)
    ended: dict[str, int] = {}
    for name in data.draw(st.permutations([name for name in names for _ in range(14)])):
        if name in ended:
            continue
        logged[name].append(next(losses))
        asha.report(name, len(logged[name]), min(logged[name]))
        curves = {other: curve(*values) for other, values in logged.items()}
        for running in [other for other in names if other not in ended]:
            decision = judge_run(config, running, curves, last_passed_rung=passed[running])
            passed[running] = decision.last_passed_rung
            if decision.stop_reason is not None:
                ended[running] = len(logged[running])
        assert ended == asha.ended
