"""Reads the sizes of Llama 4 from a Hugging Face config.json."""

from typing import Any

from titanrun.config.types import AUTO
from titanrun.models.shared.config import Sizes
from titanrun.models.shared.huggingface_config import HuggingFaceConfig
from titanrun.models.shared.huggingface_decoder import read_decoder, read_rope

# model_type of the text model, and of one that sees pictures
TEXT_TYPE, WHOLE_TYPE = "llama4_text", "llama4"
# what config.json leaves unsaid, since transformers has no choice there
EXPERTS_OF_TRANSFORMERS = {
    "num_shared_experts": 1,
    "score_func": "sigmoid",
    "route_norm": False,
    "route_scale": 1.0,
    "gate_bias": False,
    "score_before_experts": True,
    "num_expert_groups": None,
    "num_limited_groups": None,
}
# the bias that balances experts is titanrun's own
LOAD_BALANCE_COEFF = 1e-3
# keys of losses and of code that the forward pass does not read
UNREAD = ("for_llm_compressor", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
# of a model that sees pictures, what is not its text model
PICTURES = ("vision_config", "boi_token_index", "eoi_token_index", "image_token_index")


def read_sizes(written: dict[str, Any]) -> Sizes:
    """The sizes in a config.json; absent keys have transformers' defaults. Raises ProblemsFound."""
    file = HuggingFaceConfig(written, family="llama4")
    if file.only("model_type", TEXT_TYPE, WHOLE_TYPE) == TEXT_TYPE:
        sizes = read_text_model(file)
    else:
        for key in PICTURES:
            file.rest.pop(key, None)
        text = file.within_key("text_config")
        text.only("model_type", TEXT_TYPE)
        sizes = {**read_text_model(text), "tie_word_embeddings": file.flag("tie_word_embeddings", False)}
        file.inner += text.inner
    file.close()
    return sizes


def read_text_model(file: HuggingFaceConfig) -> Sizes:
    """The sizes of the text model; what is wrong stays in `file`."""
    for key in UNREAD:
        file.rest.pop(key, None)
    sizes = read_decoder(file, max_seq_len=131072, norm_eps=1e-5)
    layers = sizes["n_layers"] or 0
    every, first = read_nope(file, layers)
    has_rope = [every is None or layer % every != first for layer in range(layers)]
    tuned = file.take("attn_temperature_tuning", True, lambda value: type(value) in (bool, int), "true or false")
    scale = file.not_negative("attn_scale", 0.1)
    sizes |= {
        "n_kv_heads": file.whole("num_key_value_heads", sizes["n_heads"] if "num_key_value_heads" in file.rest else 8),
        "head_dim": file.whole("head_dim", AUTO if "head_dim" in file.rest else 128),
        "interleave_moe_layer_step": read_moe_step(file, layers),
        "every_n_layers_nope": every,
        "first_nope_layer": first,
        "fixed_attn_block_size": read_block(file, has_rope),
        "qk_norm": file.flag("use_qk_norm", True),
        # only layers without RoPE read it
        "attn_scale": scale if tuned and every is not None else 0.0,
        "floor_scale": file.whole("floor_scale", 8192),
        "rope": read_rope(file, "llama3", max_seq_len=sizes["max_seq_len"], theta=500000.0),
        "feed_forward": {"hidden_dim": file.whole("intermediate_size_mlp", 16384)},
        "moe": {
            "num_experts": file.whole("num_local_experts", 16),
            "top_k": file.whole("num_experts_per_tok", 1),
            "hidden_dim": file.whole("intermediate_size", 8192),
            "load_balance_coeff": LOAD_BALANCE_COEFF,
            **EXPERTS_OF_TRANSFORMERS,
        },
    }
    return sizes


def read_nope(file: HuggingFaceConfig, layers: int) -> tuple[int | None, int]:
    """every_n_layers_nope and first_nope_layer: of the list of layers with RoPE, which must have a rhythm, or else of the interval."""
    every: int = file.whole("no_rope_layer_interval", 4)
    flags = file.take("no_rope_layers", [], is_list_of_bits, "a list of 0 and 1")
    without = [layer for layer, has_rope in enumerate(flags[:layers]) if not has_rope]
    if not flags:
        without = list(range(every - 1, layers, every))
    if not without:
        return None, 0
    first = without[0]
    every = without[1] - first if len(without) > 1 else max(first + 1, layers - first, 2)
    if without != list(range(first, layers, every)) or first >= every or every < 2 or 0 < len(flags) < layers:
        key = "no_rope_layers" if flags else "no_rope_layer_interval"
        file.refuse(f"{file.place(key)} names other layers than one of each two or more, and llama4 has only that")
    return every, first


def is_list_of_bits(value: Any) -> bool:
    """Whether it is a list of 0 and 1, or of false and true."""
    return isinstance(value, list) and all(item in (0, 1) for item in value)


def read_moe_step(file: HuggingFaceConfig, layers: int) -> int:
    """interleave_moe_layer_step; transformers goes by the list of layers with experts where that is there, which must have a rhythm."""
    step: int = file.whole("interleave_moe_layer_step", 1)
    named = file.rest.get("moe_layers")
    if isinstance(named, list) and named and type(named[0]) is int:
        step = named[0] + 1
    file.only("moe_layers", list(range(step - 1, layers, step)))
    return step


def read_block(file: HuggingFaceConfig, has_rope: list[bool]) -> int | None:
    """fixed_attn_block_size, unless layer_types says that all layers see whole rows."""
    in_blocks = ["chunked_attention" if rope else "full_attention" for rope in has_rope]
    is_nowhere = file.only("layer_types", in_blocks, ["full_attention"] * len(has_rope)) != in_blocks
    block: int = file.whole("attention_chunk_size", 8192)
    return None if is_nowhere else block
