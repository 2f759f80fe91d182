"""Every size of flux reaches the model: with another value it says something else, or is made of
other parts."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Generator

from titanrun.config.problems import ProblemsFound
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.model import (
    Flux,
    compute_guidance_features,
    compute_timestep_features,
    get_image_positions,
)
from titanrun.models.shared.spec.flavors import resolve_model_sizes
from titanrun.recipe.resolving.resolve import resolve_recipe

LEAVES: dict[str, tuple[Any, dict[str, Any]]] = {
    "in_channels": (16, {}),
    "vec_in_dim": (32, {}),
    "context_in_dim": (32, {}),
    "dim": (192, {"axes_dim": [16, 24, 24], "n_heads": 3}),
    "n_heads": (6, {"axes_dim": [4, 6, 6]}),
    "n_double_layers": (2, {}),
    "n_single_layers": (3, {}),
    "mlp_ratio": (2.0, {}),
    "axes_dim": ([16, 8, 8], {}),
    "theta": (100.0, {}),
    "guidance_embed": (2.0, {}),
}


def outcome(**changes: Any) -> tuple[list[tuple[str, Any]], torch.Tensor]:
    """Names and shapes of the weights, and what the model says with weights that are drawn all
    over."""
    config = FluxConfig.model_validate(
        resolve_model_sizes(FluxConfig.model_validate({"flavor": "tiny", **changes}))
    )
    model = Flux(config, seq_len=32).requires_grad_(False)
    generator = Generator().manual_seed(0)
    for weight in model.parameters():
        weight.normal_(0, 0.05, generator=generator)
    sizes = ((6, config.in_channels), (5, config.context_in_dim), (config.vec_in_dim,))
    drawn = [torch.randn(2, *size, generator=generator) for size in sizes]
    shapes = [(name, weight.shape) for name, weight in model.named_parameters()]
    told = (
        None
        if config.guidance_embed is None
        else compute_guidance_features(config.guidance_embed, 2)
    )
    return shapes, model(
        drawn[0],
        compute_timestep_features(torch.tensor([0.2, 0.7])),
        drawn[1],
        drawn[2],
        get_image_positions(2, 3),
        told,
    )


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_another_model(leaf: str) -> None:
    value, given = LEAVES[leaf]
    (names, before), (other, after) = outcome(), outcome(**{**given, leaf: value})
    assert names != other or not torch.allclose(before, after, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_heads": 7}, "dim 96 is not divisible by n_heads 7"),
        ({"axes_dim": [8, 12]}, r"axes_dim \[8, 12\] must be 3 even widths"),
        ({"axes_dim": [8, 11, 13]}, "must be 3 even widths"),
        ({"axes_dim": [8, 12, 14]}, "add up to 34, but a head is 32 wide"),
        ({"flavor": "dev"}, "flavor 'dev' needs encoder.t5_encoder"),
        ({"flavor": "auto"}, "flux does not support flavor auto: it does not read config.json"),
        ({"flavor": "big"}, "flux has no flavor 'big'"),
    ],
)
def test_sizes_that_exclude_each_other_are_a_problem(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        resolve_model_sizes(FluxConfig.model_validate({"flavor": "tiny", **changes}))
    assert any(re.search(told, problem.message) for problem in found.value.problems), (
        found.value.problems
    )


def test_there_is_no_vocabulary() -> None:
    with pytest.raises(ValidationError):
        FluxConfig.model_validate({"flavor": "tiny", "vocab_size": 32})


def test_pictures_longer_than_the_context_are_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: flux, flavor: tiny, max_seq_len: 100}\nloss: flow_matching\n"
        "training: {dataset: {name: tiny_images, image_size: 128}, seq_len: 128}\n"
    )
    with pytest.raises(ProblemsFound, match=r"seq_len 128 exceeds model\.max_seq_len 100"):
        resolve_recipe(str(recipe), environment={})
