"""FLOPs of a plan against those that PyTorch counts while a model computes a gradient."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from titanrun.distributed.spec.parallel_dims import ParallelDims
from titanrun.recipe.plan.computed_flops import compute_flops_per_token
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.plan.plan_report import format_plan, plan_to_dict
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.build.apply_converters import convert_model
from titanrun.worker.commands.measure_memory import measure_rank_memory

RECIPES = Path(__file__).parents[3] / "recipes"
SEQ_LEN = 64
DEBUG = ("llama3_debug", f"training.seq_len={SEQ_LEN}", "model.n_layers=4")
UPPER = "converters=[{name: lora, rank: 8, target_modules: [layers.2.*, layers.3.*]}]"


def lay_out(name: str, *overrides: str) -> PlanLayout:
    """The layout of a run on one rank."""
    path = str(RECIPES / f"{name}.yaml")
    run = resolve_recipe(path, list(overrides), environment={}, ranks=1).run
    parts = measure_rank_memory(run, 1)
    embedding, *layers, head = (
        ModuleSize(*sizes) for sizes in (parts["embedding"], *parts["layers"], parts["head"])
    )
    return PlanLayout(run, ParallelDims(), embedding, layers, head)


def count_matrix_flops_per_token(run: Recipe) -> float:
    """Count the FLOPs of all matrices in one pass, forward and backward."""
    model: Any = run.model.load_builder()(run.model, seq_len=SEQ_LEN)
    convert_model(run, model, meshes=None)
    tokens = torch.zeros(2, SEQ_LEN, dtype=torch.long)
    # this attention is not counted
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    return counter.get_total_flops() / tokens.numel()


# a matrix of attention and its adapter, of which three in the lowest adapted layer have inputs
# without gradients
PROJECTION = 256 * 256 + 256 * 8
NORMS, ATTENTION = 9 * 256, 4 * 2 * 256 * SEQ_LEN


@pytest.mark.parametrize(
    ("converters", "rest"),
    [
        ("converters=[]", 6 * NORMS + 6 * ATTENTION),
        ("converters=[{name: lora, rank: 8}]", 4 * NORMS + 6 * ATTENTION + 2 * 3 * PROJECTION),
        (UPPER, 3 * NORMS + 4 * ATTENTION + 2 * 3 * PROJECTION),
    ],
    ids=["all", "lora", "upper"],
)
def test_they_are_those_that_pytorch_counts(converters: str, rest: int) -> None:
    layout = lay_out(*DEBUG, converters)
    assert compute_flops_per_token(layout) - rest == count_matrix_flops_per_token(layout.run)


def test_a_plan_says_what_is_counted() -> None:
    for converters, words in (
        ("converters=[]", "forward and backward"),
        (UPPER, "forward and backward without gradients of frozen weights"),
    ):
        layout = lay_out(*DEBUG, converters)
        data = plan_to_dict(layout, DEVICES["h100"])
        flops, tokens = compute_flops_per_token(layout), data["batch"]["tokens"]
        assert (data["flops_per_token"], data["flops_per_step"]) == (flops, flops * tokens)
        assert data["seconds_per_step"][0] == pytest.approx(flops * tokens / 0.45 / 989e12)
        text = format_plan(layout, data)
        assert f"\n  compute  {flops / 1e6:.3g} MFLOPs per token, {words}\n" in text


@pytest.mark.parametrize(
    ("targets", "share"),
    [("[all-linear]", 1), ("[layers.*.moe.experts]", 1 / 4), ('["w1", "w3"]', 1 / 4)],
)
def test_a_token_uses_the_adapters_of_its_experts(targets: str, share: float) -> None:
    asked = f"converters=[{{name: lora, target_modules: {targets}}}]"
    layout = lay_out("qwen3_moe_debug", asked)
    model: Any = layout.run.model
    assert model.moe.top_k / model.moe.num_experts == 1 / 4
    none = replace(layout, layers=[replace(each, total_trainable=1) for each in layout.layers])
    trained = sum(layer.total_trainable for layer in layout.layers)
    added = compute_flops_per_token(layout) - compute_flops_per_token(none)
    assert added == pytest.approx(6 * trained * share, rel=1e-3)
