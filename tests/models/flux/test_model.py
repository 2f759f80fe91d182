"""The flux transformer against diffusers' FluxTransformer2DModel on random weights."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from torch import Generator, Tensor

from titanrun.components.checkpoints.huggingface import write_hf_folder
from titanrun.config.problems import ProblemsFound
from titanrun.models.flux.config import FluxConfig
from titanrun.models.flux.huggingface import from_huggingface, to_huggingface, to_huggingface_config
from titanrun.models.flux.model import Flux, compute_timestep_features, get_image_positions
from titanrun.models.shared.spec.flavors import load_flavors, resolve_model_sizes
from titanrun.models.shared.spec.flops import count_parameters, flops_per_token
from titanrun.recipe.builtins import register_builtins

SMALL = {"flavor": "tiny", "encoder": {"max_t5_encoding_len": 5}}
SHAPES: dict[str, dict[str, Any]] = {
    "both kinds of layers": {},
    "three heads, wide hidden part": {
        "n_double_layers": 2,
        "n_single_layers": 1,
        "in_channels": 16,
        "context_in_dim": 24,
    },
    "told a strength of guidance": {"guidance_embed": 3.5, "n_single_layers": 1},
    "one wide head": {
        "n_heads": 1,
        "axes_dim": [16, 40, 40],
        "n_single_layers": 3,
        "vec_in_dim": 8,
    },
}


def config_of(**changes: Any) -> FluxConfig:
    return FluxConfig.model_validate(
        resolve_model_sizes(FluxConfig.model_validate(SMALL | changes))
    )


def built(config: FluxConfig) -> Flux:
    """A model in which every parameter, also those that begin as zeros, is drawn."""
    model = Flux(config, seq_len=64)
    generator = Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 if parameter.ndim == 1 else parameter.size(1) ** -0.5
            parameter.normal_(0, spread, generator=generator)
    return model


def inputs(config: FluxConfig) -> dict[str, Tensor]:
    """Three samples of 2 x 3 tokens of a picture and 5 of text."""
    generator = Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(3, *shape, generator=generator)

    given = {
        "latents": draw(6, int(config.in_channels)),
        "text": draw(5, int(config.context_in_dim)),
        "pooled": draw(int(config.vec_in_dim)),
        "times": torch.tensor([0.0, 0.37, 1.0]),
    }
    return (
        given
        if config.guidance_embed is None
        else {**given, "guidance": torch.tensor([1.0, 3.5, 30.0])}
    )


def theirs(config: FluxConfig, model: Flux) -> FluxTransformer2DModel:
    made = FluxTransformer2DModel.from_config(to_huggingface_config(config, "float32"))
    made.load_state_dict(to_huggingface(config, model.state_dict()))
    return made


def their_velocity(model: FluxTransformer2DModel, given: dict[str, Tensor]) -> Tensor:
    ids = torch.tensor([[0.0, row, column] for row in range(2) for column in range(3)])
    velocity: Tensor = model(
        hidden_states=given["latents"],
        encoder_hidden_states=given["text"],
        pooled_projections=given["pooled"],
        timestep=given["times"],
        img_ids=ids,
        txt_ids=torch.zeros(5, 3),
        guidance=given.get("guidance"),
    ).sample
    return velocity


def our_velocity(model: Flux, given: dict[str, Tensor]) -> Tensor:
    told = compute_timestep_features(given["guidance"]) if "guidance" in given else None
    velocity: Tensor = model(
        given["latents"],
        compute_timestep_features(given["times"]),
        given["text"],
        given["pooled"],
        get_image_positions(2, 3),
        told,
    )
    return velocity


@pytest.mark.parametrize("shape", SHAPES)
def test_velocity_and_gradients_are_those_of_diffusers(shape: str) -> None:
    config = config_of(**SHAPES[shape])
    model = built(config)
    other = theirs(config, model)
    given = inputs(config)
    ours, expected = our_velocity(model, given), their_velocity(other, given)
    assert ours.std() > 0.1
    assert (ours - expected).abs().max() < 1e-5
    ours.square().mean().backward()
    expected.square().mean().backward()
    gradients = to_huggingface(
        config, {name: weight.grad for name, weight in model.named_parameters()}
    )
    for name, weight in other.named_parameters():
        assert (gradients[name] - weight.grad).abs().max() <= 1e-5 * max(
            1, float(weight.grad.abs().max())
        ), name


def test_a_later_token_of_the_picture_is_seen_by_earlier_ones() -> None:
    config = config_of()
    model, given = built(config), inputs(config)
    before = our_velocity(model, given)
    given["latents"][:, -1] += 1
    assert (our_velocity(model, given) - before)[:, 0].abs().max() > 1e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_come_back_bitwise(shape: str) -> None:
    config = config_of(**SHAPES[shape])
    state = built(config).state_dict()
    back = from_huggingface(config, to_huggingface(config, state))
    assert list(back) == list(state)
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_original_release_names_the_same_weights() -> None:
    config = config_of(guidance_embed=3.5)
    state = built(config).state_dict()
    original = {original_name(config, name): tensor for name, tensor in state.items()}
    assert {
        "double_blocks.0.img_attn.norm.key_norm.scale",
        "single_blocks.1.modulation.lin.bias",
        "final_layer.linear.weight",
    } <= set(original)
    back = from_huggingface(config, original)
    assert all(torch.equal(back[name], state[name]) for name in state)


def original_name(config: FluxConfig, name: str) -> str:
    """The name in flux1-dev.safetensors, written from the release's modules."""
    parts = name.split(".")
    if parts[0] == "layers":
        number, rest, kind = int(parts[1]), parts[2:-1], parts[-1]
        if number >= int(config.n_double_layers):
            inner = {
                "modulation": "modulation.lin",
                "query_norm": "norm.query_norm",
                "key_norm": "norm.key_norm",
            }.get(rest[0], rest[0])
            last = "scale" if "norm" in inner else kind
            return f"single_blocks.{number - int(config.n_double_layers)}.{inner}.{last}"
        side, inner = rest[0], ".".join(rest[1:])
        holder = {"modulation": "mod.lin", "mlp.0": "mlp.0", "mlp.2": "mlp.2"}.get(
            inner
        ) or f"attn.{'norm.' if 'norm' in inner else ''}{inner}"
        return f"double_blocks.{number}.{side}_{holder}.{'scale' if 'norm' in inner else kind}"
    return (
        name.replace("in.0.", "in.in_layer.")
        .replace("in.2.", "in.out_layer.")
        .replace("output.modulation", "final_layer.adaLN_modulation.1")
        .replace("output.linear", "final_layer.linear")
    )


def test_diffusers_opens_an_export(tmp_path: Path) -> None:
    config = config_of()
    model, given = built(config), inputs(config)
    folder = tmp_path / "hf"
    write_hf_folder(
        folder,
        to_huggingface(config, model.state_dict()),
        to_huggingface_config(config, "float32"),
        stem="diffusion_pytorch_model",
    )
    opened = FluxTransformer2DModel.from_pretrained(folder)
    torch.testing.assert_close(
        their_velocity(opened, given), our_velocity(model, given), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("double_blocks.9.img_mod.lin.weight", "are not in the model"),
        ("double_blocks.0.img_mod.lin.weight", "missing"),
    ],
)
def test_weights_of_another_model_are_a_problem(name: str, message: str) -> None:
    config = config_of()
    original = {
        original_name(config, own): tensor for own, tensor in built(config).state_dict().items()
    }
    if name in original:
        del original[name]
    else:
        original[name] = torch.zeros(2, 2)
    with pytest.raises(ProblemsFound, match=message):
        from_huggingface(config, original)


def test_a_guidance_embedding_on_one_side_only_is_a_problem_that_says_what_to_set() -> None:
    told, plain = config_of(guidance_embed=3.5), config_of()
    with pytest.raises(ProblemsFound) as found:
        from_huggingface(plain, to_huggingface(told, built(told).state_dict()))
    assert (
        found.value.problems[0].hint
        == "these have a guidance embedding: set model.guidance_embed, such as 3.5"
    )
    with pytest.raises(ProblemsFound) as found:
        from_huggingface(told, to_huggingface(plain, built(plain).state_dict()))
    assert (
        found.value.problems[0].hint
        == "these have no guidance embedding: remove model.guidance_embed"
    )


def test_every_flavor_has_the_parameters_of_its_description() -> None:
    register_builtins()
    # 11,891,178,560: diffusers' own count of the transformer of FLUX.1-schnell, which has no
    # guidance embedding
    found = {name: counted(name) for name in load_flavors("flux")}
    # and of that of FLUX.1-dev
    assert counted("dev", guidance_embed=3.5) == 11901408320
    assert found == {
        "tiny": 700352,
        "debugmodel": 258286144,
        "dev": 11891178560,
        "schnell": 11891178560,
    }


def counted(flavor: str, **changes: Any) -> int:
    encoder = {"t5_encoder": "a", "clip_encoder": "b", "autoencoder_path": "c"}
    config = FluxConfig.model_validate(
        resolve_model_sizes(FluxConfig(flavor=flavor, encoder=encoder, **changes))
    )
    count = count_parameters(config)
    with torch.device("meta"):
        assert count == sum(
            parameter.numel() for parameter in Flux(config, seq_len=512).parameters()
        )
        if flavor == "schnell" or changes:
            made = FluxTransformer2DModel.from_config(to_huggingface_config(config, "float32"))
            assert count == sum(parameter.numel() for parameter in made.parameters())
    return count


def test_the_arithmetic_of_a_token_leaves_out_what_it_does_not_meet() -> None:
    config = config_of(n_double_layers=1, n_single_layers=1)
    dim, hidden = int(config.dim), config.hidden_dim
    per_token = 2 * (3 * dim * dim + dim * dim + 2 * dim * hidden)
    assert flops_per_token(config, 0) == pytest.approx(6 * per_token, rel=0.2)
    assert flops_per_token(config, 100) - flops_per_token(config, 0) == 6 * 2 * 2 * dim * 100


def test_first_weights_predict_nothing_and_depend_on_the_seed() -> None:
    config = config_of()
    model = Flux(config, seq_len=64).requires_grad_(False)
    model.init_weights(Generator().manual_seed(3))
    assert torch.equal(
        our_velocity(model, inputs(config)), torch.zeros(3, 6, int(config.in_channels))
    )
    qkv = model.layers["0"].img.qkv.weight
    assert float(qkv.std()) == pytest.approx(math.sqrt(2 / sum(qkv.shape)), rel=0.05)
    assert float(model.time_in[0].weight.std()) == pytest.approx(0.02, rel=0.05)
