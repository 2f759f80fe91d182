"""Digits of losses for people."""

import math

import pytest

from titanrun.components.metrics.held_out_history import load_held_out_history
from titanrun.components.metrics.spec.metric_format import format_decimals, format_metrics


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5000"),
        (0.00123, "0.0012"),
        (0.000987654, "0.000988"),
        (3.21e-05, "3.21e-05"),
        (-2.0e-07, "-2e-07"),
        (0.0, "0.0000"),
        (math.nan, "nan"),
    ],
)
def test_a_small_number_keeps_its_digits(value: float, text: str) -> None:
    assert format_decimals(value, 4) == text


def test_small_losses_are_not_shown_as_zero() -> None:
    losses = {"loss": 3.21e-06, "validation/loss": 4.5e-07}
    assert [one.text for one in format_metrics(losses)] == [
        "loss 3.21e-06",
        "validation loss  4.5e-07",
    ]
    history = load_held_out_history(({**losses, "step": step} for step in (1, 2)), last_step=2)
    assert history.format_table(9)[1].split() == ["1", "3.21e-06", "4.5e-07", "*"]
    assert history.format_best() == "best held-out loss: 4.5e-07 at step 1"
