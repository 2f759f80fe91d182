"""Conversion of Flux weights to and from the names of diffusers' FluxTransformer2DModel.

The names of the original release are read too. diffusers splits queries, keys, values and MLP of a
layer, which are rows of one matrix in the original. In the last modulation it scales before it
shifts, where the original does the opposite.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.models.flux.config import FluxConfig
from titanrun.models.shared.config import unwrap_auto

WEIGHTS_NAME = "diffusion_pytorch_model"
# titanrun's names to diffusers', outside of the layers
OUTER_NAMES = {
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
# several names: the rows of titanrun's matrix in that order
DOUBLE_LAYER_NAMES = {
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
SINGLE_LAYER_NAMES = {
    "modulation": ("norm.linear",),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "query_norm": ("attn.norm_q",),
    "key_norm": ("attn.norm_k",),
    "linear2": ("proj_out",),
}
# the original release's names to titanrun's
ORIGINAL_NAME_PATTERNS = (
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
    """Return the weights under diffusers' names.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    check_flux_weights(config, state)
    exported: dict[str, Tensor] = {}
    for own, names in iter_name_mapping(config):
        whole = swap_modulation_halves(own, state[own])
        sizes = get_row_counts(config, len(names)) if len(names) > 1 else [whole.size(0)]
        exported |= dict(zip(names, whole.split(sizes), strict=True))
    return exported


def from_huggingface(config: FluxConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under titanrun's names, from diffusers' or the original names.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    if any(name.startswith("double_blocks.") for name in state):
        imported = rename_original_weights(config, state)
        check_flux_weights(config, imported)
        return imported
    pairs = list(iter_name_mapping(config))
    wanted = {name for _, names in pairs for name in names}
    check_weight_names(wanted, set(state))
    imported = {
        own: swap_modulation_halves(own, torch.cat([state[name] for name in names]))
        for own, names in pairs
    }
    check_flux_weights(config, imported)
    return imported


def rename_original_weights(config: FluxConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a file such as flux1-dev.safetensors under titanrun's names."""
    first_single = unwrap_auto(config.n_double_layers)
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        own = re.sub(r"^double_blocks\.", "layers.", name)
        own = re.sub(
            r"^single_blocks\.(\d+)", lambda match: f"layers.{first_single + int(match[1])}", own
        )
        for pattern, replacement in ORIGINAL_NAME_PATTERNS:
            own = re.sub(pattern, replacement, own)
        found[own] = tensor
    return found


def to_huggingface_config(config: FluxConfig, dtype_name: str) -> dict[str, Any]:
    """Return the content of a config.json for diffusers."""
    return {
        "_class_name": "FluxTransformer2DModel",
        "patch_size": 1,
        "in_channels": unwrap_auto(config.in_channels),
        "num_layers": unwrap_auto(config.n_double_layers),
        "num_single_layers": unwrap_auto(config.n_single_layers),
        "attention_head_dim": config.head_dim,
        "num_attention_heads": unwrap_auto(config.n_heads),
        "joint_attention_dim": unwrap_auto(config.context_in_dim),
        "pooled_projection_dim": unwrap_auto(config.vec_in_dim),
        "guidance_embeds": config.guidance_embed is not None,
        "axes_dims_rope": list(unwrap_auto(config.axes_dim)),
    }


def iter_name_mapping(config: FluxConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield titanrun's name of each parameter, and diffusers' names of its rows."""
    doubles = unwrap_auto(config.n_double_layers)
    for own in config.parameter_shapes():
        module, _, kind = own.rpartition(".")
        if not own.startswith("layers."):
            yield own, (f"{OUTER_NAMES[module]}.{kind}",)
            continue
        _, layer, inner = module.split(".", 2)
        if int(layer) < doubles:
            prefix, names = f"transformer_blocks.{layer}", DOUBLE_LAYER_NAMES[inner]
        else:
            prefix, names = (
                f"single_transformer_blocks.{int(layer) - doubles}",
                SINGLE_LAYER_NAMES[inner],
            )
        yield own, tuple(f"{prefix}.{name}.{kind}" for name in names)


def get_row_counts(config: FluxConfig, parts: int) -> list[int]:
    """Return the rows of queries, keys and values, and of the MLP if there are four parts."""
    return [unwrap_auto(config.dim)] * 3 + [config.hidden_dim] * (parts - 3)


def swap_modulation_halves(own: str, tensor: Tensor) -> Tensor:
    """Swap shift and scale of the last modulation. Return other tensors as they are."""
    return torch.cat(list(reversed(tensor.chunk(2)))) if own.startswith(LAST_MODULATION) else tensor


def check_flux_weights(config: FluxConfig, state: Mapping[str, Tensor]) -> None:
    """Raise ProblemsFound if names or shapes are not those of the model."""
    shapes = config.parameter_shapes()
    check_weight_names(set(shapes), set(state))
    for name, shape in shapes.items():
        if tuple(state[name].shape) != shape:
            raise problem_error(
                "checkpoint",
                f"{name} has shape {list(state[name].shape)}, but the model needs {list(shape)}",
                hint="use the flavor of these weights",
            )


def check_weight_names(wanted: set[str], given: set[str]) -> None:
    """Raise ProblemsFound if weights are missing or unknown."""
    missing, extra = sorted(wanted - given), sorted(given - wanted)
    if missing:
        only_guidance = all("guidance" in name for name in missing)
        hint = (
            "these have no guidance embedding: remove model.guidance_embed"
            if only_guidance
            else "use the weights of a flux transformer"
        )
        raise problem_error(
            "checkpoint", f"{len(missing)} weights are missing, such as {missing[0]}", hint=hint
        )
    if extra:
        only_guidance = all("guidance" in name for name in extra)
        hint = (
            "these have a guidance embedding: set model.guidance_embed, such as 3.5"
            if only_guidance
            else "use the flavor of these weights"
        )
        raise problem_error(
            "checkpoint",
            f"{len(extra)} weights are not in the model, such as {extra[0]}",
            hint=hint,
        )
