"""Reading and writing of config.json keys that decoder-only families share."""

from typing import Any

from titanrun.config.base import dump_config
from titanrun.models.shared.config import Sizes
from titanrun.models.shared.decoder_config import DecoderConfig
from titanrun.models.shared.huggingface_config import HuggingFaceConfigReader
from titanrun.models.shared.rope_config import RopeScalingConfig, YarnRopeScalingConfig


def read_decoder_sizes(
    file: HuggingFaceConfigReader,
    *,
    max_seq_len: int,
    norm_eps: float = 1e-6,
    attention_bias: bool = False,
) -> Sizes:
    """Return the sizes that every decoder has, with transformers' defaults for absent keys.

    The arguments are defaults that differ between classes. Switches that the family does not
    support become problems of `file`.
    """
    file.take_one_allowed("hidden_act", "silu")
    file.take_one_allowed("attention_bias", attention_bias)
    for switch in ("add_cross_attention", "tie_encoder_decoder"):
        file.take_one_allowed(switch, False)
    file.take_one_allowed("attention_dropout", 0.0, 0)
    file.take_one_allowed("cross_attention_hidden_size", None)
    file.take_one_allowed("pruned_heads", {})
    return {
        "vocab_size": file.take_positive_int("vocab_size"),
        "max_seq_len": file.take_positive_int("max_position_embeddings", max_seq_len),
        "dim": file.take_positive_int("hidden_size"),
        "n_layers": file.take_positive_int("num_hidden_layers"),
        "n_heads": file.take_positive_int("num_attention_heads"),
        "norm_eps": file.take_positive_float("rms_norm_eps", norm_eps),
        "tie_word_embeddings": file.take_bool("tie_word_embeddings", False),
    }


def read_rope_sizes(
    file: HuggingFaceConfigReader, *kinds: str, max_seq_len: int, theta: float = 10000.0
) -> Sizes:
    """Return model.rope, with one of the kinds of scaling or without.

    In transformers 4 the mapping is rope_scaling, with the base outside of it, and in 5 it is
    rope_parameters. transformers 5 prefers the older key.
    """
    key = "rope_scaling" if file.remaining.get("rope_scaling") else "rope_parameters"
    rope = file.take_nested_config(key)
    for unread in ("rope_scaling", "rope_parameters"):
        file.remaining.pop(unread, None)
    theta = rope.take_positive_float("rope_theta", file.take_positive_float("rope_theta", theta))
    for mapping in (rope, file):
        mapping.take_one_allowed("partial_rotary_factor", 1.0, 1)
    old_spelling = rope.remaining.pop("type", None)
    rope.remaining.setdefault("rope_type", old_spelling)
    kind = rope.take_one_allowed("rope_type", "default", *kinds)
    return {
        "theta": theta,
        "scaling": SCALING_READERS[kind](rope, max_seq_len) if kind in SCALING_READERS else None,
    }


def read_llama3_scaling(rope: HuggingFaceConfigReader, max_seq_len: int) -> Sizes:
    """Return Llama 3.1's scaling."""
    return {
        "name": "llama3",
        "factor": rope.take_positive_float("factor"),
        "low_freq_factor": rope.take_positive_float("low_freq_factor"),
        "high_freq_factor": rope.take_positive_float("high_freq_factor"),
        "original_max_position_embeddings": rope.take_positive_int(
            "original_max_position_embeddings", max_seq_len
        ),
    }


def read_yarn_scaling(rope: HuggingFaceConfigReader, max_seq_len: int) -> Sizes:
    """Return YaRN scaling.

    transformers uses the mscales only if it has both. Only attention_factor makes cosines and sines
    grow less than m(1).
    """
    original = rope.take_positive_int("original_max_position_embeddings", max_seq_len)
    mscale, all_dim = (
        rope.take_non_negative_float("mscale", 0.0),
        rope.take_non_negative_float("mscale_all_dim", 0.0),
    )
    sizes = {
        "name": "yarn",
        "factor": rope.take_positive_float("factor", max_seq_len / original),
        "beta_fast": rope.take_positive_float("beta_fast", 32.0),
        "beta_slow": rope.take_positive_float("beta_slow", 1.0),
        "original_max_position_embeddings": original,
        "truncate": rope.take_bool("truncate", True),
        "mscale": mscale if mscale and all_dim else 1.0,
        "mscale_all_dim": all_dim,
        "attention_factor": rope.take_positive_float("attention_factor", None),
    }
    if all_dim and not mscale and sizes["attention_factor"] is None:
        sizes["attention_factor"] = YarnRopeScalingConfig(factor=sizes["factor"]).cos_sin_scale()
    return sizes


SCALING_READERS = {"yarn": read_yarn_scaling, "llama3": read_llama3_scaling}


def export_rope_scaling(scaling: RopeScalingConfig | None) -> dict[str, Any] | None:
    """Return RoPE scaling in transformers' format."""
    if scaling is None:
        return None
    fields = dump_config(scaling)
    # transformers 5 infers another factor if an mscale is zero
    growth = {"attention_factor": scaling.cos_sin_scale()} if "attention_factor" in fields else {}
    return {"rope_type": fields.pop("name"), **fields, **growth}


def export_decoder_config(
    config: DecoderConfig, dtype_name: str, *, model_type: str, architecture: str
) -> dict[str, Any]:
    """Return the config.json keys of every decoder, for transformers 4 and 5.

    `dtype_name` is the dtype of the weights in the same folder. Ids of special tokens belong to the
    tokenizer and are null here, since transformers' defaults would be wrong. A model with a scalar
    head belongs to the class for sequence classification.
    """
    labels: dict[str, Any] = {}
    if config.head == "scalar":
        architecture = architecture.replace("ForCausalLM", "ForSequenceClassification")
        labels = {"num_labels": 1, "id2label": {"0": "reward"}, "label2id": {"reward": 0}}
    return {
        **labels,
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
