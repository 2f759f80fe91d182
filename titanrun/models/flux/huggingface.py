"""Flux weights under the names of diffusers' FluxTransformer2DModel, and back; the names of the original release are read too.

diffusers keeps queries, keys, values and the hidden part of a layer apart, where the original has one matrix of all rows; and it scales
before it shifts in the last modulation, where the original does the opposite.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import fail
from titanrun.models.flux.config import FluxConfig
from titanrun.models.shared.config import decided

WEIGHTS_NAME = "diffusion_pytorch_model"
# ours to diffusers', beside the layers
ENDS = {
    "img_in": "x_embedder",
    "txt_in": "context_embedder",
    "time_in.0": "time_text_embed.timestep_embedder.linear_1",
    "time_in.2": "time_text_embed.timestep_embedder.linear_2",
    "vector_in.0": "time_text_embed.text_embedder.linear_1",
    "vector_in.2": "time_text_embed.text_embedder.linear_2",
    "guidance_in.0": "time_text_embed.guidance_embedder.linear_1",
    "guidance_in.2": "time_text_embed.guidance_embedder.linear_2",
    "output.modulation": "norm_out.linear",
    "output.linear": "proj_out",
}
# several names: the rows of our matrix one after the other
DOUBLE = {
    "img.modulation": ("norm1.linear",),
    "img.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "img.query_norm": ("attn.norm_q",),
    "img.key_norm": ("attn.norm_k",),
    "img.proj": ("attn.to_out.0",),
    "img.mlp.0": ("ff.net.0.proj",),
    "img.mlp.2": ("ff.net.2",),
    "txt.modulation": ("norm1_context.linear",),
    "txt.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "txt.query_norm": ("attn.norm_added_q",),
    "txt.key_norm": ("attn.norm_added_k",),
    "txt.proj": ("attn.to_add_out",),
    "txt.mlp.0": ("ff_context.net.0.proj",),
    "txt.mlp.2": ("ff_context.net.2",),
}
SINGLE = {
    "modulation": ("norm.linear",),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "query_norm": ("attn.norm_q",),
    "key_norm": ("attn.norm_k",),
    "linear2": ("proj_out",),
}
# the original release's to ours
ORIGINAL = (
    (r"^(time_in|vector_in|guidance_in)\.in_layer\.", r"\1.0."),
    (r"^(time_in|vector_in|guidance_in)\.out_layer\.", r"\1.2."),
    (r"^final_layer\.adaLN_modulation\.1\.", "output.modulation."),
    (r"^final_layer\.linear\.", "output.linear."),
    (r"\.(img|txt)_mod\.lin\.", r".\1.modulation."),
    (r"\.(img|txt)_attn\.norm\.(query|key)_norm\.scale$", r".\1.\2_norm.weight"),
    (r"\.(img|txt)_(?:attn|mlp)\.(qkv|proj)\.", r".\1.\2."),
    (r"\.(img|txt)_mlp\.", r".\1.mlp."),
    (r"\.modulation\.lin\.", ".modulation."),
    (r"\.norm\.(query|key)_norm\.scale$", r".\1_norm.weight"),
)
LAST_MODULATION = "output.modulation."


def to_huggingface(config: FluxConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under diffusers' names. Raises ProblemsFound where names or shapes are not those of the model."""
    check(config, state)
    exported: dict[str, Tensor] = {}
    for own, names in mapping(config):
        whole = with_halves_exchanged(own, state[own])
        sizes = row_counts(config, len(names)) if len(names) > 1 else [whole.size(0)]
        exported |= dict(zip(names, whole.split(sizes), strict=True))
    return exported


def from_huggingface(config: FluxConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under titanrun's names, from diffusers' or from those of the original release.

    Raises ProblemsFound where names or shapes are not those of the model.
    """
    if any(name.startswith("double_blocks.") for name in state):
        imported = from_original(config, state)
        check(config, imported)
        return imported
    pairs = list(mapping(config))
    wanted = {name for _, names in pairs for name in names}
    refuse_other_names(wanted, set(state))
    imported = {
        own: with_halves_exchanged(own, torch.cat([state[name] for name in names]))
        for own, names in pairs
    }
    check(config, imported)
    return imported


def from_original(config: FluxConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a file such as flux1-dev.safetensors under titanrun's names."""
    first_single = decided(config.n_double_layers)
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        own = re.sub(r"^double_blocks\.", "layers.", name)
        own = re.sub(
            r"^single_blocks\.(\d+)", lambda match: f"layers.{first_single + int(match[1])}", own
        )
        for pattern, replacement in ORIGINAL:
            own = re.sub(pattern, replacement, own)
        found[own] = tensor
    return found


def huggingface_config(config: FluxConfig, dtype_name: str) -> dict[str, Any]:
    """The content of a config.json that diffusers opens."""
    return {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": decided(config.in_channels),
        "num_layers": decided(config.n_double_layers),
        "num_single_layers": decided(config.n_single_layers),
        "attention_head_dim": config.head_dim,
        "num_attention_heads": decided(config.n_heads),
        "joint_attention_dim": decided(config.context_in_dim),
        "pooled_projection_dim": decided(config.vec_in_dim),
        "guidance_embeds": config.guidance_embed is not None,
        "axes_dims_rope": list(decided(config.axes_dim)),
    }


def mapping(config: FluxConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our name of each parameter, and diffusers' of its rows."""
    doubles = decided(config.n_double_layers)
    for own in config.parameter_shapes():
        module, _, kind = own.rpartition(".")
        if not own.startswith("layers."):
            yield own, (f"{ENDS[module]}.{kind}",)
            continue
        _, layer, inner = module.split(".", 2)
        if int(layer) < doubles:
            prefix, names = f"transformer_blocks.{layer}", DOUBLE[inner]
        else:
            prefix, names = f"single_transformer_blocks.{int(layer) - doubles}", SINGLE[inner]
        yield own, tuple(f"{prefix}.{name}.{kind}" for name in names)


def row_counts(config: FluxConfig, parts: int) -> list[int]:
    """Rows of queries, keys, values, and of the hidden part where there are four."""
    return [decided(config.dim)] * 3 + [config.hidden_dim] * (parts - 3)


def with_halves_exchanged(own: str, tensor: Tensor) -> Tensor:
    """The last modulation as the other side has it; any other tensor as it is."""
    return torch.cat(list(reversed(tensor.chunk(2)))) if own.startswith(LAST_MODULATION) else tensor


def check(config: FluxConfig, state: Mapping[str, Tensor]) -> None:
    """Raises ProblemsFound where names or shapes are not those of the model."""
    shapes = config.parameter_shapes()
    refuse_other_names(set(shapes), set(state))
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise fail(
                "checkpoint",
                f"{name} is {list(state[name].shape)}, and {list(shape)} in the model",
                help="take the model's flavor",
            )


def refuse_other_names(wanted: set[str], given: set[str]) -> None:
    """Raises ProblemsFound where weights are missing or have no place."""
    missing, extra = sorted(wanted - given), sorted(given - wanted)
    if missing:
        of_guidance = all("guidance" in name for name in missing)
        help = (
            "these have no guidance embedding: remove model.guidance_embed"
            if of_guidance
            else "take the weights of a flux transformer"
        )
        raise fail(
            "checkpoint", f"{len(missing)} weights are missing, such as {missing[0]}", help=help
        )
    if extra:
        of_guidance = all("guidance" in name for name in extra)
        help = (
            "these have a guidance embedding: set model.guidance_embed, such as 3.5"
            if of_guidance
            else "take the model's flavor"
        )
        raise fail(
            "checkpoint",
            f"{len(extra)} weights have no place in the model, such as {extra[0]}",
            help=help,
        )
