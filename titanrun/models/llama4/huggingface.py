"""Conversion of Llama 4 weights to and from transformers' Llama4ForCausalLM.

transformers rotates neighbors in RoPE here, as titanrun does: no rows are reordered. It multiplies
tokens by the matrices of experts from the right, with gates and values next to each other in one
matrix. Only titanrun has the bias that balances experts: it is not exported, and zero after an
import.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from titanrun.config.problems import ProblemsFound
from titanrun.models.llama4.config import Llama4Config
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder_config import Shapes
from titanrun.models.shared.huggingface_decoder_config import (
    export_decoder_config,
    export_rope_scaling,
)
from titanrun.models.shared.huggingface_weights import (
    ATTENTION_NAMES,
    NORM_NAMES,
    check_state_dict,
    drop_tied_head,
    export_decoder_weights,
    import_decoder_weights,
    to_huggingface_name,
)

# names within a layer of the two halves of one matrix on disk
GATE, VALUE, JOINT = (
    "feed_forward.experts.gate_proj",
    "feed_forward.experts.up_proj",
    "feed_forward.experts.gate_up_proj",
)
DOWN = "feed_forward.experts.down_proj"
LAYER_NAMES = {
    **ATTENTION_NAMES,
    "feed_forward.w1.weight": "feed_forward.gate_proj.weight",
    "feed_forward.w2.weight": "feed_forward.down_proj.weight",
    "feed_forward.w3.weight": "feed_forward.up_proj.weight",
    "moe.router.gate.weight": "feed_forward.router.weight",
    "moe.experts.w1": GATE,
    "moe.experts.w2": DOWN,
    "moe.experts.w3": VALUE,
    "moe.shared_experts.w1.weight": "feed_forward.shared_expert.gate_proj.weight",
    "moe.shared_experts.w2.weight": "feed_forward.shared_expert.down_proj.weight",
    "moe.shared_experts.w3.weight": "feed_forward.shared_expert.up_proj.weight",
    **NORM_NAMES,
}
EXPERT_PARAMETERS = {JOINT: ("moe.experts.w1", "moe.experts.w3"), DOWN: ("moe.experts.w2",)}
# transformers does not tell peft that these are [E, I, O], so peft exchanges A and B
PEFT_TURNS_EXPERTS = True
# prefix of the text model in a Llama4ForConditionalGeneration, and prefixes of all other weights
TEXT_MODEL_PREFIX = "language_model."
IMAGE_WEIGHT_PREFIXES = ("vision_model.", "multi_modal_projector.")


def to_huggingface(config: Llama4Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names. A tied head is not exported.

    Raises:
        ProblemsFound: if transformers has no such experts, or names or shapes are not those of the
            model.
    """
    if config.export_problems():
        raise ProblemsFound(config.export_problems())
    weights: dict[str, Tensor] = {}
    for name, weight in export_decoder_weights(
        config, state, LAYER_NAMES, transform=transpose_expert_weights
    ).items():
        if name.endswith(GATE):
            weights[name.removesuffix(GATE) + JOINT] = weight
        elif name.endswith(VALUE):
            joint = name.removesuffix(VALUE) + JOINT
            weights[joint] = torch.cat([weights[joint], weight], dim=-1)
        else:
            weights[name] = weight
    return weights


def from_huggingface(config: Llama4Config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a Llama4ForCausalLM under titanrun's names.

    The text model in a Llama4ForConditionalGeneration is read too. A tied head gets the embedding's
    matrix.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    given = {
        name.removeprefix(TEXT_MODEL_PREFIX): weight
        for name, weight in state.items()
        if not name.startswith(IMAGE_WEIGHT_PREFIXES)
    }
    given = drop_tied_head(
        given, is_tied=unwrap_auto(config.tie_word_embeddings), head="lm_head.weight"
    )
    check_state_dict(get_huggingface_shapes(config), given)
    parts: dict[str, Tensor] = {}
    for name, weight in given.items():
        if name.endswith(JOINT):
            before = name.removesuffix(JOINT)
            parts[before + GATE], parts[before + VALUE] = (
                half.mT for half in weight.chunk(2, dim=-1)
            )
        else:
            parts[name] = transpose_expert_weights(name, weight)
    weights = import_decoder_weights(config, parts, LAYER_NAMES)
    return {name: weight.contiguous() for name, weight in weights.items()}


def transpose_expert_weights(name: str, weight: Tensor) -> Tensor:
    """Transpose the matrices of experts. Return all others as they are."""
    return weight.mT if ".experts." in name else weight


def get_huggingface_shapes(config: Llama4Config) -> Shapes:
    """Return name and shape of every weight of transformers."""
    shapes: Shapes = {}
    for name, shape in config.parameter_shapes().items():
        theirs = to_huggingface_name(name, LAYER_NAMES)
        if theirs.endswith(GATE):
            shapes[theirs.removesuffix(GATE) + JOINT] = (shape[0], shape[2], 2 * shape[1])
        elif theirs.endswith(DOWN):
            shapes[theirs] = (shape[0], shape[2], shape[1])
        elif not theirs.endswith(VALUE):
            shapes[theirs] = shape
    return shapes


def to_huggingface_config(config: Llama4Config, dtype_name: str) -> dict[str, Any]:
    """Return the content of config.json for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder.
    """
    moe, layers = config.moe, range(unwrap_auto(config.n_layers))
    return {
        **export_decoder_config(
            config, dtype_name, model_type="llama4_text", architecture="Llama4ForCausalLM"
        ),
        "num_key_value_heads": config.n_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": moe.hidden_dim,
        "intermediate_size_mlp": config.feed_forward.hidden_dim,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "interleave_moe_layer_step": config.interleave_moe_layer_step,
        "moe_layers": [layer for layer in layers if config.has_experts(layer)],
        "no_rope_layers": [int(config.uses_rope(layer)) for layer in layers],
        # transformers requires a number even if all layers have RoPE, or no layer has blocks
        "no_rope_layer_interval": config.every_n_layers_nope or unwrap_auto(config.n_layers) + 1,
        "attention_chunk_size": config.fixed_attn_block_size or config.max_seq_len,
        "layer_types": [
            "full_attention"
            if config.get_attention_chunk_size(layer) is None
            else "chunked_attention"
            for layer in layers
        ],
        "use_qk_norm": config.qk_norm,
        "attn_temperature_tuning": unwrap_auto(config.attn_scale) > 0,
        "attn_scale": config.attn_scale,
        "floor_scale": config.floor_scale,
        "rope_theta": config.rope.theta,
        "rope_scaling": export_rope_scaling(unwrap_auto(config.rope.scaling)),
    }
