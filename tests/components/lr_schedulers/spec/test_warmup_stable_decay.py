from typing import Any

import pytest

from titanrun.components.lr_schedulers.config import WarmupStableDecayConfig
from titanrun.components.lr_schedulers.spec.warmup_stable_decay import WarmupStableDecaySchedule

TO_SIX_DIGITS = 5e-7

# worked by hand from the formula
VECTORS: list[tuple[dict[str, Any], list[float]]] = [
    ({"warmup_steps": 2}, [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
    ({"warmup_steps": 2, "decay_ratio": 0.5}, [0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]),
    (
        {"warmup_steps": 2, "decay_ratio": 0.8, "min_lr_factor": 0.1},
        [0.5, 1, 1, 0.8875, 0.775, 0.6625, 0.55, 0.4375, 0.325, 0.2125],
    ),
    (
        {"warmup_steps": 2, "decay_ratio": 0.8, "decay_type": "cosine", "min_lr_factor": 0.1},
        [0.5, 1, 1, 0.965746, 0.868198, 0.722208, 0.55, 0.377792, 0.231802, 0.134254],
    ),
    ({"warmup_steps": 0, "decay_ratio": 0.3, "decay_type": "sqrt"}, [1] * 8 + [0.42265, 0.183503]),
    ({"warmup_steps": 2, "decay_ratio": 0.0, "decay_type": "cosine"}, [0.5] + [1] * 9),
    ({"warmup_steps": 20}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
]

# of a run of torchtitan v0.2.2: lr 8e-4, 30 steps, warmup 2, decay_ratio 0.8
RECORDED = [
    0.0004,
    0.0008,
    0.0008,
    0.0008,
    0.0008,
    0.0008,
    0.0008,
    0.0007666666666666667,
    0.0007333333333333333,
    0.0007,
    0.0006666666666666668,
    0.0006333333333333333,
    0.0006000000000000001,
    0.0005666666666666666,
    0.0005333333333333335,
    0.0005,
    0.0004666666666666666,
    0.0004333333333333334,
    0.0004,
    0.0003666666666666667,
    0.0003333333333333333,
    0.00030000000000000003,
    0.00026666666666666673,
    0.0002333333333333333,
    0.0002,
    0.00016666666666666672,
    0.0001333333333333333,
    0.0001,
    6.66666666666667e-05,
    3.333333333333331e-05,
]


def schedule(**fields: Any) -> WarmupStableDecaySchedule:
    return WarmupStableDecaySchedule(
        WarmupStableDecayConfig(**{"total_steps": 10, "warmup_steps": 0, **fields})
    )


@pytest.mark.parametrize(("fields", "expected"), VECTORS)
def test_factors_are_those_worked_by_hand(fields: dict[str, Any], expected: list[float]) -> None:
    factors = [schedule(**fields).factor(step) for step in range(10)]
    assert factors == pytest.approx(expected, abs=TO_SIX_DIGITS)


@pytest.mark.parametrize("decay_type", ["linear", "sqrt", "cosine"])
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_the_floor_is_reached_right_after_the_last_step_and_kept(
    decay_type: str, floor: float
) -> None:
    decays = schedule(warmup_steps=2, decay_type=decay_type, min_lr_factor=floor)
    assert decays.factor(9) > floor
    assert [decays.factor(step) for step in (10, 11, 1000)] == pytest.approx([floor] * 3)


def test_a_schedule_without_decay_stays_at_its_peak_past_the_horizon() -> None:
    assert schedule(decay_ratio=0.0).factor(1000) == 1.0


def test_the_learning_rates_that_torchtitan_recorded_are_met_exactly() -> None:
    warms = schedule(total_steps=30, warmup_steps=2, decay_ratio=0.8)
    assert [8e-4 * warms.factor(step) for step in range(30)] == RECORDED
