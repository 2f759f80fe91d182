"""The schedules beside warmup-stable-decay, against transformers' and torch's. Those count the
first step as 0."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR
from transformers import optimization

from titanrun.components.lr_schedulers.config import (
    ConstantScheduleConfig,
    CosineScheduleConfig,
    InverseSqrtScheduleConfig,
    LRSchedulerConfig,
    OneCycleConfig,
    PolynomialScheduleConfig,
    WarmupStableDecayConfig,
)
from titanrun.config import registry

STEPS, WARMUP = 30, 5
LR = 0.5


def factors(config: Any, steps: int = STEPS) -> list[float]:
    curve = config.load_builder()(config)
    return [curve.factor(step) for step in range(steps)]


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=LR, momentum=0.9)


def rates(theirs: LRScheduler, steps: int = STEPS) -> list[float]:
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(steps):
            seen.append(theirs.get_last_lr()[0] / LR)
            theirs.step()
    return seen


def test_cosine_is_transformers_when_the_first_step_is_0() -> None:
    theirs = optimization.get_cosine_schedule_with_warmup(optimizer(), WARMUP, STEPS)
    assert factors(
        CosineScheduleConfig(warmup_steps=WARMUP, total_steps=STEPS, first_step=0)
    ) == pytest.approx(rates(theirs), abs=1e-12)


def test_cosine_with_a_floor_is_transformers() -> None:
    theirs = optimization.get_cosine_with_min_lr_schedule_with_warmup(
        optimizer(), WARMUP, STEPS, min_lr_rate=0.1
    )
    ours = CosineScheduleConfig(
        warmup_steps=WARMUP, total_steps=STEPS, first_step=0, min_lr_factor=0.1
    )
    assert factors(ours) == pytest.approx(rates(theirs), abs=1e-12)


@pytest.mark.parametrize("power", [1.0, 2.5])
def test_polynomial_is_transformers(power: float) -> None:
    theirs = optimization.get_polynomial_decay_schedule_with_warmup(
        optimizer(), WARMUP, STEPS, lr_end=0.05 * LR, power=power
    )
    ours = PolynomialScheduleConfig(
        warmup_steps=WARMUP, total_steps=STEPS, first_step=0, min_lr_factor=0.05, power=power
    )
    assert factors(ours, STEPS + 5) == pytest.approx(rates(theirs, STEPS + 5), abs=1e-12)


@pytest.mark.parametrize("timescale", [None, 7])
def test_inverse_sqrt_is_transformers(timescale: int | None) -> None:
    theirs = optimization.get_inverse_sqrt_schedule(optimizer(), WARMUP, timescale)
    assert factors(
        InverseSqrtScheduleConfig(warmup_steps=WARMUP, first_step=0, timescale=timescale)
    ) == pytest.approx(rates(theirs), abs=1e-12)


def test_constant_is_transformers() -> None:
    theirs = optimization.get_constant_schedule_with_warmup(optimizer(), WARMUP)
    assert factors(ConstantScheduleConfig(warmup_steps=WARMUP, first_step=0)) == pytest.approx(
        rates(theirs), abs=1e-12
    )


@pytest.mark.parametrize("anneal", ["cosine", "linear"])
def test_one_cycle_is_torchs(anneal: Any) -> None:
    strategy = {"cosine": "cos", "linear": "linear"}[anneal]
    theirs = OneCycleLR(optimizer(), max_lr=LR, total_steps=STEPS + 1, anneal_strategy=strategy)  # type: ignore[arg-type]
    ours = OneCycleConfig(total_steps=STEPS + 1, first_step=0, anneal=anneal)
    assert factors(ours, STEPS + 1) == pytest.approx(
        [*rates(theirs), theirs.get_last_lr()[0] / LR], abs=1e-12
    )


@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.98])
def test_the_phases_of_a_cycle_may_be_shorter_than_a_step(share: float) -> None:
    theirs = OneCycleLR(optimizer(), max_lr=LR, total_steps=STEPS + 1, pct_start=share)
    ours = OneCycleConfig(total_steps=STEPS + 1, first_step=0, warmup_share=share)
    assert factors(ours, STEPS + 1) == pytest.approx(
        [*rates(theirs), theirs.get_last_lr()[0] / LR], abs=1e-12
    )


def test_a_cycle_may_be_nothing_but_one_of_its_phases() -> None:
    down = OneCycleConfig(total_steps=STEPS, first_step=0, warmup_share=0.0, anneal="linear")
    floor = down.min_lr_factor
    # the peak is one step before the first
    assert factors(down) == pytest.approx(
        [1 - (1 - floor) * (step + 1) / STEPS for step in range(STEPS)], abs=1e-12
    )
    up = OneCycleConfig(total_steps=STEPS, first_step=0, warmup_share=1.0, anneal="linear")
    start = up.warmup_start_factor
    assert factors(up, STEPS + 3) == pytest.approx(
        [start + (1 - start) * min(step / (STEPS - 1), 1) for step in range(STEPS + 3)], abs=1e-12
    )


def test_inverse_sqrt_without_a_warmup_has_the_timescale_of_transformers() -> None:
    theirs = optimization.get_inverse_sqrt_schedule(optimizer(), 0)
    assert factors(InverseSqrtScheduleConfig(warmup_steps=0, first_step=0)) == pytest.approx(
        rates(theirs), abs=1e-12
    )


def test_a_warmup_from_a_share_of_the_peak_is_torchs() -> None:
    theirs = torch.optim.lr_scheduler.LinearLR(optimizer(), start_factor=0.2, total_iters=WARMUP)
    ours = ConstantScheduleConfig(warmup_steps=WARMUP, warmup_start_factor=0.2, first_step=0)
    assert factors(ours) == pytest.approx(rates(theirs), abs=1e-12)


def test_linear_decay_of_verl_begins_at_0_and_that_of_torchtitan_does_not() -> None:
    horizon: dict[str, Any] = {"warmup_steps": 2, "total_steps": 10}
    decay = [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert factors(WarmupStableDecayConfig(**horizon, first_step=0), 10) == pytest.approx(
        [0, 0.5, *decay]
    )
    assert factors(WarmupStableDecayConfig(**horizon), 10) == pytest.approx([0.5, 1, *decay])
    theirs = LambdaLR(optimizer(), lambda step: step / 2 if step < 2 else (10 - step) / 8)
    assert factors(WarmupStableDecayConfig(**horizon, first_step=0), 10) == pytest.approx(
        rates(theirs, 10)
    )


@pytest.mark.parametrize("config", [CosineScheduleConfig, PolynomialScheduleConfig, OneCycleConfig])
def test_the_first_step_counted_as_1_neither_begins_nor_ends_at_0(config: Any) -> None:
    warmed = {} if config is OneCycleConfig else {"warmup_steps": WARMUP}
    curve = factors(config(total_steps=STEPS, warmup_start_factor=0.0, min_lr_factor=0.0, **warmed))
    assert min(curve) > 0
    assert max(curve) <= 1.0


LEAVES: dict[str, Any] = {
    "lr_scheduler:warmup_stable_decay.warmup_start_factor": 0.5,
    "lr_scheduler:warmup_stable_decay.first_step": 0,
    "lr_scheduler:cosine.warmup_start_factor": 0.5,
    "lr_scheduler:cosine.min_lr_factor": 0.3,
    "lr_scheduler:cosine.first_step": 0,
    "lr_scheduler:cosine.warmup_steps": 9,
    "lr_scheduler:cosine.total_steps": 50,
    "lr_scheduler:polynomial.warmup_start_factor": 0.5,
    "lr_scheduler:polynomial.min_lr_factor": 0.3,
    "lr_scheduler:polynomial.first_step": 0,
    "lr_scheduler:polynomial.warmup_steps": 9,
    "lr_scheduler:polynomial.total_steps": 50,
    "lr_scheduler:polynomial.power": 3.0,
    "lr_scheduler:inverse_sqrt.warmup_start_factor": 0.5,
    "lr_scheduler:inverse_sqrt.min_lr_factor": 0.3,
    "lr_scheduler:inverse_sqrt.first_step": 0,
    "lr_scheduler:inverse_sqrt.warmup_steps": 9,
    "lr_scheduler:inverse_sqrt.timescale": 3,
    "lr_scheduler:constant.warmup_start_factor": 0.5,
    "lr_scheduler:constant.first_step": 0,
    "lr_scheduler:constant.warmup_steps": 9,
    "lr_scheduler:one_cycle.warmup_start_factor": 0.5,
    "lr_scheduler:one_cycle.min_lr_factor": 0.3,
    "lr_scheduler:one_cycle.first_step": 0,
    "lr_scheduler:one_cycle.total_steps": 50,
    "lr_scheduler:one_cycle.warmup_share": 0.6,
    "lr_scheduler:one_cycle.anneal": "linear",
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_another_curve(leaf: str) -> None:
    name, _, field = leaf.removeprefix("lr_scheduler:").partition(".")
    config = registry.load_choice(LRSchedulerConfig, name)
    own = {
        name: value
        for name, value in {"warmup_steps": WARMUP, "total_steps": STEPS}.items()
        if name in config.model_fields
    }
    assert factors(config(**{**own, field: LEAVES[leaf]})) != factors(config(**own))
