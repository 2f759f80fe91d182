"""What decoder-only families share of a Hugging Face config.json: reading it, and writing one."""

from typing import Any

from titanrun.config.base import dump
from titanrun.models.shared.config import RopeScalingConfig, Sizes, YarnRopeScalingConfig
from titanrun.models.shared.decoder_config import DecoderConfig
from titanrun.models.shared.huggingface_config import HuggingFaceConfig


def read_decoder(
    file: HuggingFaceConfig,
    *,
    max_seq_len: int,
    norm_eps: float = 1e-6,
    attention_bias: bool = False,
) -> Sizes:
    """The sizes that every decoder has, with transformers' default where a key is absent: what the arguments say differs from class to
    class.

    Switches that the family does not have are refused.
    """
    file.only("hidden_act", "silu")
    file.only("attention_bias", attention_bias)
    for switch in ("add_cross_attention", "tie_encoder_decoder"):
        file.only(switch, False)
    file.only("attention_dropout", 0.0, 0)
    file.only("cross_attention_hidden_size", None)
    file.only("pruned_heads", {})
    return {
        "vocab_size": file.whole("vocab_size"),
        "max_seq_len": file.whole("max_position_embeddings", max_seq_len),
        "dim": file.whole("hidden_size"),
        "n_layers": file.whole("num_hidden_layers"),
        "n_heads": file.whole("num_attention_heads"),
        "norm_eps": file.number("rms_norm_eps", norm_eps),
        "tie_word_embeddings": file.flag("tie_word_embeddings", False),
    }


def read_rope(
    file: HuggingFaceConfig, *kinds: str, max_seq_len: int, theta: float = 10000.0
) -> Sizes:
    """model.rope, with one of the kinds of scaling, or none.

    The mapping is rope_scaling in transformers 4, whose base stands beside it, and rope_parameters in 5, which prefers the older key.
    """
    key = "rope_scaling" if file.rest.get("rope_scaling") else "rope_parameters"
    rope = file.within_key(key)
    for unread in ("rope_scaling", "rope_parameters"):
        file.rest.pop(unread, None)
    theta = rope.number("rope_theta", file.number("rope_theta", theta))
    for mapping in (rope, file):
        mapping.only("partial_rotary_factor", 1.0, 1)
    old_spelling = rope.rest.pop("type", None)
    rope.rest.setdefault("rope_type", old_spelling)
    kind = rope.only("rope_type", "default", *kinds)
    return {
        "theta": theta,
        "scaling": SCALINGS[kind](rope, max_seq_len) if kind in SCALINGS else None,
    }


def read_llama3_scaling(rope: HuggingFaceConfig, max_seq_len: int) -> Sizes:
    """Llama 3.1's rule."""
    return {
        "name": "llama3",
        "factor": rope.number("factor"),
        "low_freq_factor": rope.number("low_freq_factor"),
        "high_freq_factor": rope.number("high_freq_factor"),
        "original_max_position_embeddings": rope.whole(
            "original_max_position_embeddings", max_seq_len
        ),
    }


def read_yarn_scaling(rope: HuggingFaceConfig, max_seq_len: int) -> Sizes:
    """YaRN. transformers asks for the mscales only where it has both, and nothing else makes cosines and sines grow less than m(1)."""
    original = rope.whole("original_max_position_embeddings", max_seq_len)
    mscale, all_dim = rope.not_negative("mscale", 0.0), rope.not_negative("mscale_all_dim", 0.0)
    sizes = {
        "name": "yarn",
        "factor": rope.number("factor", max_seq_len / original),
        "beta_fast": rope.number("beta_fast", 32.0),
        "beta_slow": rope.number("beta_slow", 1.0),
        "original_max_position_embeddings": original,
        "truncate": rope.flag("truncate", True),
        "mscale": mscale if mscale and all_dim else 1.0,
        "mscale_all_dim": all_dim,
        "attention_factor": rope.number("attention_factor", None),
    }
    if all_dim and not mscale and sizes["attention_factor"] is None:
        sizes["attention_factor"] = YarnRopeScalingConfig(factor=sizes["factor"]).magnitude()
    return sizes


SCALINGS = {"yarn": read_yarn_scaling, "llama3": read_llama3_scaling}


def scaling_mapping(scaling: RopeScalingConfig | None) -> dict[str, Any] | None:
    """RoPE scaling as transformers writes it."""
    if scaling is None:
        return None
    fields = dump(scaling)
    # transformers 5 infers another one where an mscale is zero
    growth = {"attention_factor": scaling.magnitude()} if "attention_factor" in fields else {}
    return {"rope_type": fields.pop("name"), **fields, **growth}


def decoder_mapping(
    config: DecoderConfig, dtype_name: str, *, model_type: str, architecture: str
) -> dict[str, Any]:
    """What stands in the config.json of every decoder, for transformers 4 and 5; `dtype_name` is that of the weights beside it.

    Ids of special tokens belong to the tokenizer and are null here, since transformers' defaults would be wrong.
    """
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype_name,
    }
