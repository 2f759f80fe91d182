import math

import pytest

from titanrun.training.loss_spikes import LossSpikeDetector


def heard(watch: LossSpikeDetector, losses: list[float]) -> list[int]:
    """The steps, counted from 1, whose loss was a spike."""
    return [
        step
        for step, loss in enumerate(losses, start=1)
        if (watch.observe(step, loss), watch.pop_metrics())[1]
    ]


NOISE = [3.0 + 0.1 * math.sin(7 * step) for step in range(40)]


def test_a_loss_far_above_the_others_is_a_spike() -> None:
    assert heard(LossSpikeDetector(10.0), [*NOISE, 6.0, *NOISE]) == [41]


def test_a_loss_far_below_is_none() -> None:
    assert heard(LossSpikeDetector(10.0), [*NOISE, 0.1]) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_never_enters_the_window(bad: float) -> None:
    assert heard(LossSpikeDetector(10.0, window=20), [*NOISE, *([bad] * 50), 6.0, *NOISE]) == [91]


def test_spikes_do_not_hide_the_next_ones() -> None:
    assert heard(LossSpikeDetector(10.0), [*NOISE, 6.0, 6.0, 6.0]) == [41, 42, 43]


def test_a_new_level_is_normal_after_half_a_window() -> None:
    found = heard(LossSpikeDetector(10.0, window=20), [*NOISE, *(loss + 3.0 for loss in NOISE)])
    assert found == list(range(41, 51))


def test_a_flat_loss_is_no_reason_to_call_the_smallest_rise_a_spike() -> None:
    assert heard(LossSpikeDetector(10.0), [*([2.0] * 40), 2.01]) == []


def test_too_few_losses_say_nothing() -> None:
    assert heard(LossSpikeDetector(10.0), [3.0, 3.0, 3.0, 300.0]) == []
