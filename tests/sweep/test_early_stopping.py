"""Which runs of a sweep are ended early."""

import math

import pytest

from titanrun.sweep.config import EarlyStoppingConfig
from titanrun.sweep.early_stopping import MetricCurve, find_early_stop_reason

MEDIAN = EarlyStoppingConfig(name="median", first_step=3)
HALVING = EarlyStoppingConfig(name="halving", first_step=2, factor=2)


def curve(*values: float) -> MetricCurve:
    return MetricCurve(range(1, len(values) + 1), values)


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
