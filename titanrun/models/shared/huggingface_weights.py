"""Conversion of weights to and from transformers' names, shared by the families.

On disk transformers stores each expert's matrices separately, where titanrun stacks those of a
layer: their names contain {} for the expert.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder_config import DecoderConfig, Shapes

MODEL_NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
SCALAR_HEAD_NAMES = {"output.weight": "score.weight"}
"""Head of a class for sequence classification with one label."""


ATTENTION_NAMES = {
    "attention.wq.weight": "self_attn.q_proj.weight",
    "attention.wk.weight": "self_attn.k_proj.weight",
    "attention.wv.weight": "self_attn.v_proj.weight",
    "attention.wo.weight": "self_attn.o_proj.weight",
}
NORM_NAMES = {
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
FEED_FORWARD_NAMES = {
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
}
EXPERT_NAMES = {
    "moe.router.gate.weight": "mlp.gate.weight",
    "moe.experts.w1": "mlp.experts.{}.gate_proj.weight",
    "moe.experts.w2": "mlp.experts.{}.down_proj.weight",
    "moe.experts.w3": "mlp.experts.{}.up_proj.weight",
}
# expert parameters of transformers 5, in its order, and the matrices whose rows they concatenate
SWIGLU_EXPERT_PARAMETERS = {
    "mlp.experts.gate_up_proj": ("moe.experts.w1", "moe.experts.w3"),
    "mlp.experts.down_proj": ("moe.experts.w2",),
}
EXPERT = "{}"
# older versions of transformers saved the frequencies of RoPE
FREQUENCIES = "rotary_emb.inv_freq"

WeightTransform = Callable[[str, Tensor], Tensor]


def keep_weight(name: str, weight: Tensor) -> Tensor:
    """Return the weight unchanged: transformers uses the same matrix."""
    return weight


def export_decoder_weights(
    config: DecoderConfig,
    state: Mapping[str, Tensor],
    layer_names: Mapping[str, str],
    *,
    transform: WeightTransform = keep_weight,
) -> dict[str, Tensor]:
    """Return the weights of a model under transformers' names.

    A tied head, and buffers without a name in `layer_names`, are not exported. `transform(name,
    weight)` converts titanrun's weight `name` to that of transformers.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    layer_names = {**layer_names, **get_head_names(config)}
    shapes = get_exported_shapes(config, layer_names)
    given = drop_tied_head(
        state, is_tied=unwrap_auto(config.tie_word_embeddings), head="output.weight"
    )
    unexported = config.buffer_shapes().keys() - shapes.keys()
    check_state_dict(
        shapes, {name: tensor for name, tensor in given.items() if name not in unexported}
    )
    exported: dict[str, Tensor] = {}
    for name in shapes:
        theirs, weight = to_huggingface_name(name, layer_names), transform(name, given[name])
        experts = weight.unbind(0) if EXPERT in theirs else [weight]
        exported.update(
            {theirs.format(expert): part.contiguous() for expert, part in enumerate(experts)}
        )
    return exported


def import_decoder_weights(
    config: DecoderConfig,
    state: Mapping[str, Tensor],
    layer_names: Mapping[str, str],
    *,
    transform: WeightTransform = keep_weight,
) -> dict[str, Tensor]:
    """Return the weights of a transformers model under titanrun's names.

    A tied head gets the embedding's matrix, and buffers without a name in `layer_names` are zero. A
    scalar head may be missing: then it has no weight in the result. `transform(name, weight)`
    converts the weight of transformers to titanrun's `name`.

    Raises:
        ProblemsFound: if names or shapes are not those of the model.
    """
    given = drop_tied_head(
        state, is_tied=unwrap_auto(config.tie_word_embeddings), head="lm_head.weight"
    )
    given = {name: tensor for name, tensor in given.items() if not name.endswith(FREQUENCIES)}
    layer_names = {**layer_names, **get_head_names(config)}
    sources = {
        name: get_source_shapes(name, shape, layer_names)
        for name, shape in get_exported_shapes(config, layer_names).items()
    }
    if config.head == "scalar":
        given.pop("lm_head.weight", None)
        if SCALAR_HEAD_NAMES["output.weight"] not in given:
            del sources["output.weight"]
    check_state_dict(
        {theirs: shape for shapes in sources.values() for theirs, shape in shapes.items()}, given
    )
    weights = {}
    for name, shapes in sources.items():
        parts = [given[theirs] for theirs in shapes]
        weights[name] = transform(
            name,
            torch.stack(parts) if EXPERT in to_huggingface_name(name, layer_names) else parts[0],
        )
    if config.tie_word_embeddings:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    buffers = {name: shape for name, shape in config.buffer_shapes().items() if name not in weights}
    return weights | {
        name: torch.zeros(shape, dtype=torch.float32) for name, shape in buffers.items()
    }


def get_head_names(config: DecoderConfig) -> Mapping[str, str]:
    """Return the names of a head that language models do not have."""
    return SCALAR_HEAD_NAMES if config.head == "scalar" else {}


def get_exported_shapes(config: DecoderConfig, layer_names: Mapping[str, str]) -> Shapes:
    """Return name and shape of every parameter, and of the buffers that transformers has too."""
    buffers = {
        name: shape
        for name, shape in config.buffer_shapes().items()
        if strip_layer_prefix(name) in layer_names
    }
    return config.parameter_shapes() | buffers


def get_source_shapes(name: str, shape: tuple[int, ...], layer_names: Mapping[str, str]) -> Shapes:
    """Return name and shape of the transformers tensors that form one parameter."""
    theirs = to_huggingface_name(name, layer_names)
    if EXPERT not in theirs:
        return {theirs: shape}
    return {theirs.format(expert): shape[1:] for expert in range(shape[0])}


def strip_layer_prefix(name: str) -> str:
    """Return the name of a layer's tensor within the layer."""
    return name.split(".", 2)[2]


def to_huggingface_name(name: str, layer_names: Mapping[str, str]) -> str:
    """Return transformers' name of the parameter `name`.

    `layer_names` are the family's names within a layer.
    """
    if name in SCALAR_HEAD_NAMES and name in layer_names:
        return layer_names[name]
    if name in MODEL_NAMES:
        return MODEL_NAMES[name]
    return f"model.layers.{name.split('.', 2)[1]}.{layer_names[strip_layer_prefix(name)]}"


def drop_tied_head(state: Mapping[str, Tensor], *, is_tied: bool, head: str) -> dict[str, Tensor]:
    """Return `state` without a tied head, which is a copy of the embedding."""
    return {name: tensor for name, tensor in state.items() if name != head or not is_tied}


def check_state_dict(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]) -> None:
    """Raise ProblemsFound unless `given` has exactly the expected names and shapes."""
    absent = [name for name in expected if name not in given]
    unknown = sorted(given.keys() - expected.keys())
    other = [
        f"{name} is {format_shape(given[name].shape)}, not {format_shape(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    problems = [
        Problem(
            "checkpoint",
            f"{what}: {format_word_list(names, conjunction='and', max_words=4)}",
            hint=hint,
        )
        for what, names, hint in (
            (
                "weights the model needs are missing",
                absent,
                "check that the folder contains all files of this model",
            ),
            (
                "weights the model does not have",
                unknown,
                "check that the folder belongs to this model",
            ),
            (
                "weights with other shapes than the model's",
                other,
                "use flavor auto to take the sizes from config.json",
            ),
        )
        if names
    ]
    if problems:
        raise ProblemsFound(problems)


def format_shape(shape: tuple[int, ...]) -> str:
    """Return a shape as text such as `256 x 768`."""
    return " x ".join(map(str, shape))
