"""Every size of flux reaches the model: with another value it says something else, or is made of other parts."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Generator

from titanrun.config.problems import ProblemsFound
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.model import Flux, guidance_features, places_of, time_features
from titanrun.models.shared.flavors import spell_out
from titanrun.recipe.resolve import resolve

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
    """Names and shapes of the weights, and what the model says with weights that are drawn all over."""
    config = FluxConfig.model_validate(
        spell_out(FluxConfig.model_validate({"flavor": "tiny", **changes}))
    )
    model = Flux(config, seq_len=32).requires_grad_(False)
    generator = Generator().manual_seed(0)
    for weight in model.parameters():
        weight.normal_(0, 0.05, generator=generator)
    sizes = ((6, config.in_channels), (5, config.context_in_dim), (config.vec_in_dim,))
    drawn = [torch.randn(2, *size, generator=generator) for size in sizes]
    shapes = [(name, weight.shape) for name, weight in model.named_parameters()]
    told = None if config.guidance_embed is None else guidance_features(config.guidance_embed, 2)
    return shapes, model(
        drawn[0], time_features(torch.tensor([0.2, 0.7])), drawn[1], drawn[2], places_of(2, 3), told
    )


@pytest.mark.parametrize("leaf", LEAVES)
def test_another_value_gives_another_model(leaf: str) -> None:
    value, given = LEAVES[leaf]
    (names, before), (other, after) = outcome(), outcome(**{**given, leaf: value})
    assert names != other or not torch.allclose(before, after, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"n_heads": 7}, "dim 96 cannot be split over 7 heads"),
        ({"axes_dim": [8, 12]}, r"axes_dim \[8, 12\] is not 3 even widths"),
        ({"axes_dim": [8, 11, 13]}, "is not 3 even widths"),
        ({"axes_dim": [8, 12, 14]}, "make 34, and a head is 32 wide"),
        ({"flavor": "dev"}, "flavor 'dev' needs encoder.t5_encoder"),
        ({"flavor": "auto"}, "flux has no flavor auto: it reads no config.json"),
        ({"flavor": "big"}, "flux has no flavor 'big'"),
    ],
)
def test_sizes_that_exclude_each_other_are_a_problem(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ProblemsFound) as found:
        spell_out(FluxConfig.model_validate({"flavor": "tiny", **changes}))
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
    with pytest.raises(ProblemsFound, match="rows of 128 tokens exceed the model's context of 100"):
        resolve(str(recipe), environment={})
