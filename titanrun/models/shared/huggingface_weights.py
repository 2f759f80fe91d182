"""Weights under transformers' names, and back: what the families share.

On disk transformers keeps each expert's matrices apart, where titanrun stacks those of a layer: their names hold {} for the expert.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.suggest import listing
from titanrun.models.shared.decoder_config import DecoderConfig, Shapes

NAMES = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


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
# the parameters that transformers 5 makes of an expert's matrices, in its order, and whose rows they have, one below the other
SWIGLU_EXPERT_PARAMETERS = {
    "mlp.experts.gate_up_proj": ("moe.experts.w1", "moe.experts.w3"),
    "mlp.experts.down_proj": ("moe.experts.w2",),
}
EXPERT = "{}"
# older versions of transformers saved the frequencies that RoPE is computed from
FREQUENCIES = "rotary_emb.inv_freq"

Change = Callable[[str, Tensor], Tensor]


def unchanged(name: str, weight: Tensor) -> Tensor:
    """transformers computes with the same matrix."""
    return weight


def exported_weights(
    config: DecoderConfig,
    state: Mapping[str, Tensor],
    layer_names: Mapping[str, str],
    *,
    change: Change = unchanged,
) -> dict[str, Tensor]:
    """The weights of a model under transformers' names. A tied head, and buffers that `layer_names` has no name for, are not exported.

    `change(name, weight)` turns what stands in titanrun's `name` into what transformers computes with. Raises ProblemsFound where names
    or shapes are not those of the model.
    """
    shapes = saved_shapes(config, layer_names)
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="output.weight")
    unsaid = config.buffer_shapes().keys() - shapes.keys()
    check_state(shapes, {name: tensor for name, tensor in given.items() if name not in unsaid})
    exported: dict[str, Tensor] = {}
    for name in shapes:
        theirs, weight = huggingface_name(name, layer_names), change(name, given[name])
        experts = weight.unbind(0) if EXPERT in theirs else [weight]
        exported.update(
            {theirs.format(expert): part.contiguous() for expert, part in enumerate(experts)}
        )
    return exported


def imported_weights(
    config: DecoderConfig,
    state: Mapping[str, Tensor],
    layer_names: Mapping[str, str],
    *,
    change: Change = unchanged,
) -> dict[str, Tensor]:
    """The weights of a model of transformers under titanrun's names. A tied head is the embedding's matrix, and buffers that
    `layer_names` has no name for are zero.

    `change(name, weight)` turns what transformers computes with into titanrun's `name`. Raises ProblemsFound where names or shapes are
    not those of the model.
    """
    given = without_tied_head(state, tied=config.tie_word_embeddings, head="lm_head.weight")
    given = {name: tensor for name, tensor in given.items() if not name.endswith(FREQUENCIES)}
    sources = {
        name: source_shapes(name, shape, layer_names)
        for name, shape in saved_shapes(config, layer_names).items()
    }
    check_state(
        {theirs: shape for shapes in sources.values() for theirs, shape in shapes.items()}, given
    )
    weights = {}
    for name, shapes in sources.items():
        parts = [given[theirs] for theirs in shapes]
        weights[name] = change(
            name, torch.stack(parts) if EXPERT in huggingface_name(name, layer_names) else parts[0]
        )
    if config.tie_word_embeddings:
        weights["output.weight"] = weights["tok_embeddings.weight"]
    buffers = {name: shape for name, shape in config.buffer_shapes().items() if name not in weights}
    return weights | {
        name: torch.zeros(shape, dtype=torch.float32) for name, shape in buffers.items()
    }


def saved_shapes(config: DecoderConfig, layer_names: Mapping[str, str]) -> Shapes:
    """Name and shape of every parameter, and of the buffers that transformers has too."""
    buffers = {
        name: shape
        for name, shape in config.buffer_shapes().items()
        if within_layer(name) in layer_names
    }
    return config.parameter_shapes() | buffers


def source_shapes(name: str, shape: tuple[int, ...], layer_names: Mapping[str, str]) -> Shapes:
    """Name and shape of the tensors of transformers that one parameter is made of."""
    theirs = huggingface_name(name, layer_names)
    if EXPERT not in theirs:
        return {theirs: shape}
    return {theirs.format(expert): shape[1:] for expert in range(shape[0])}


def within_layer(name: str) -> str:
    """The name of a layer's tensor without the layer."""
    return name.split(".", 2)[2]


def huggingface_name(name: str, layer_names: Mapping[str, str]) -> str:
    """The name that transformers gives the parameter `name`; `layer_names` has the family's names within a layer."""
    if name in NAMES:
        return NAMES[name]
    return f"model.layers.{name.split('.', 2)[1]}.{layer_names[within_layer(name)]}"


def without_tied_head(state: Mapping[str, Tensor], *, tied: bool, head: str) -> dict[str, Tensor]:
    """`state` without the head that is the embedding once more."""
    return {name: tensor for name, tensor in state.items() if name != head or not tied}


def check_state(expected: Mapping[str, tuple[int, ...]], given: Mapping[str, Tensor]) -> None:
    """Raise ProblemsFound unless `given` has exactly the expected names and shapes."""
    absent = [name for name in expected if name not in given]
    unknown = sorted(given.keys() - expected.keys())
    other = [
        f"{name} is {by(given[name].shape)}, not {by(shape)}"
        for name, shape in expected.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    problems = [
        Problem("checkpoint", f"{what}: {listing(names, last='and', most=4)}", help=help)
        for what, names, help in (
            (
                "weights the model needs are missing",
                absent,
                "check that the folder holds all files of this model",
            ),
            (
                "weights the model does not have",
                unknown,
                "check that the folder belongs to this model",
            ),
            (
                "weights of other sizes than the model's",
                other,
                "use flavor auto to take the sizes from config.json",
            ),
        )
        if names
    ]
    if problems:
        raise ProblemsFound(problems)


def by(shape: tuple[int, ...]) -> str:
    """`256 x 768`."""
    return " x ".join(map(str, shape))
