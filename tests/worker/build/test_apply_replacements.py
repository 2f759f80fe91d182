"""Parts of a model that a recipe replaces by name."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.precision import get_precision
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_model import build_model
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
Metrics = Callable[..., list[dict[str, float]]]
FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda gate: gate * torch.sigmoid(gate),
    "gelu": lambda gate: gate * 0.5 * (1 + torch.erf(gate / 2**0.5)),
    "relu": lambda gate: gate.clamp(min=0),
    "squared_relu": lambda gate: gate.clamp(min=0) ** 2,
    "sigmoid": lambda gate: 1 / (1 + torch.exp(-gate)),
}


def replaced(match: str, activation: str) -> str:
    """The override for one entry."""
    return (
        f'replace=[{{match: "{match}", with: {{name: gated_feed_forward, '
        f"activation: {activation}}}}}]"
    )


def layers_of(resolved: Path) -> nn.Module:
    """The layers of the run's model, with first weights."""
    with build_train_loop(
        load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
    ) as trainer:
        return trainer.engine.model.get_submodule("layers")


@pytest.mark.parametrize("activation", FORMULAS)
def test_a_gate_of_another_activation_computes_its_formula(activation: str, run: Run) -> None:
    layers = layers_of(
        run("run", replaced("layers.1.feed_forward", activation), "checkpoint.enable=false")
    )
    assert [type(layer.feed_forward).__name__ for layer in layers.values()] == [
        "FeedForward",
        "GatedFeedForward",
    ]
    part = layers.get_submodule("1.feed_forward").double()
    w1, w2, w3 = (part.get_parameter(f"w{number}.weight") for number in (1, 2, 3))
    x_BTD = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        part(x_BTD), (FORMULAS[activation](x_BTD @ w1.T) * (x_BTD @ w3.T)) @ w2.T
    )


def test_swiglu_in_the_place_of_swiglu_changes_no_bit(metrics: Metrics) -> None:
    steps = "training.steps=3"
    plain, replacing = metrics(steps), metrics(steps, replaced("layers.*.feed_forward", "silu"))
    assert [line["loss"] for line in plain] == [line["loss"] for line in replacing]
    assert [line["grad_norm"] for line in plain] == [line["grad_norm"] for line in replacing]


ALREADY = "is already replaced by entry 1 of the list"
ONE = "{match: 'layers.*.feed_forward', with: gated_feed_forward}"
WRONG = {
    "nothing": (
        "{match: 'layers.*.feed_forwar', with: gated_feed_forward}",
        "no module of the model is named 'layers.*.feed_forwar'",
    ),
    "same": (
        f"{ONE}, {{match: 'layers.0.feed*', with: gated_feed_forward}}",
        f"layers.0.feed_forward {ALREADY}",
    ),
    "within": (
        f"{ONE}, {{match: 'layers.1', with: gated_feed_forward}}",
        f"layers.1 (overlaps layers.1.feed_forward) {ALREADY}",
    ),
    "other kind": (
        "{match: norm, with: gated_feed_forward}",
        "gated_feed_forward replaces layers of w1, w2 and w3, but this is RMSNorm",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_entries_that_mean_nothing_or_what_others_have_are_problems(wrong: str, run: Run) -> None:
    entries, message = WRONG[wrong]
    recipe = load_resolved(run("run", f"replace=[{entries}]"))
    with pytest.raises(ProblemsFound) as found:
        build_model(recipe, get_precision("float32", "float32"))
    assert [problem.message for problem in found.value.problems] == [message]
    assert found.value.problems[0].path[:1] == ("replace",)
