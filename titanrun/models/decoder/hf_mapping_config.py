"""Mapping between custom decoders and the families that have a class in transformers."""

from collections.abc import Mapping
from typing import Any

from titanrun.config.base import dump_config
from titanrun.config.diagnostics import format_short_value
from titanrun.config.problems import Problem, problem_error
from titanrun.config.suggest import format_word_list
from titanrun.models.shared.config import ModelConfig, Sizes
from titanrun.models.shared.decoder_config import build_size_problem

SHARED_FIELDS = (
    "vocab_size",
    "max_seq_len",
    "dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "norm_eps",
    "tie_word_embeddings",
    "head",
)
DENSE_THEN_EXPERTS = "dense layers, then experts in all others"
LATENT_FIELDS = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
COMMON_SIZES: Sizes = {
    "norm": "rms",
    "post_norms": False,
    "logit_soft_cap": None,
    "hidden_pattern": ["experts"],
    "attention.qk_norm": False,
    "attention.bias": "none",
    "attention.sinks": False,
    "attention.window": None,
    "attention.window_pattern": ["window"],
    "attention.soft_cap": None,
    "attention.latent": None,
    "rope.pattern": ["rope"],
    "feed_forward.bias": False,
}
"""Parts that most families have."""
FAMILY_SIZES: dict[str, Sizes] = {
    "llama3": {**COMMON_SIZES, "moe": None},
    "qwen3": {
        **COMMON_SIZES,
        "attention.qk_norm": True,
        "rope.pairs": "halves",
        "rope.scaling": None,
        "moe.swiglu_limit": None,
    },
    "gpt_oss": {
        **{name: value for name, value in COMMON_SIZES.items() if name != "attention.window"},
        "attention.bias": "all",
        "attention.sinks": True,
        "attention.window_pattern": ["window", "full"],
        "rope.pairs": "halves",
        "moe.swiglu_limit": ...,
    },
    "deepseek_v3": {
        **COMMON_SIZES,
        "attention.latent": ...,
        "rope.pairs": "neighbours",
        "hidden_pattern": DENSE_THEN_EXPERTS,
        "moe": ...,
        "moe.swiglu_limit": None,
    },
}
"""Parts of each family by field name, where `...` is any value but null.

Other fields are free.
"""
# Llama supports both, since its mapping converts between them
FAMILY_ROPE_PAIRS = {
    "llama3": "neighbours",
    "qwen3": "halves",
    "gpt_oss": "halves",
    "deepseek_v3": "neighbours",
}
PATTERN_OWNERS = {"attention.window_pattern": "attention.window", "hidden_pattern": "moe"}
HUGGINGFACE_CLASS_NAMES = {
    "llama3": "Llama",
    "qwen3": "Qwen3",
    "gpt_oss": "GptOss",
    "deepseek_v3": "DeepseekV3",
}


def find_nearest_family(config: ModelConfig) -> tuple[str, list[Problem]]:
    """Return the family that has most of the parts, and a problem for each part it lacks."""
    sizes = dump_config(config)
    found = {
        family: find_mismatched_fields(sizes, wanted) for family, wanted in FAMILY_SIZES.items()
    }
    family = min(found, key=lambda name: len(found[name]))
    return family, [
        build_mismatch_problem(family, field, sizes, FAMILY_SIZES[family][field])
        for field in found[family]
    ]


def find_mismatched_fields(sizes: Sizes, wanted: Sizes) -> list[str]:
    """Return the fields in which a model differs from a family."""
    return [field for field, value in wanted.items() if not matches_family(sizes, field, value)]


def matches_family(sizes: Sizes, field: str, wanted: Any) -> bool:
    """Return whether a field matches a family, or is a pattern without an effect."""
    value = get_dotted_value(sizes, field)
    if field in PATTERN_OWNERS and get_dotted_value(sizes, PATTERN_OWNERS[field]) is None:
        return True
    if wanted is ...:
        return value is not None
    if wanted == DENSE_THEN_EXPERTS:
        kinds = expand_hidden_pattern(sizes)
        return kinds == sorted(kinds)
    return bool(value == wanted)


def expand_hidden_pattern(sizes: Sizes) -> list[str]:
    """Return the kind of each layer's feed-forward part, dense or experts."""
    pattern = sizes["hidden_pattern"]
    return [pattern[layer % len(pattern)] for layer in range(sizes["n_layers"])]


def get_dotted_value(sizes: Sizes, field: str) -> Any:
    """Return the value at a dotted name, or None within a null section."""
    value: Any = sizes
    for step in field.split("."):
        value = None if value is None else value[step]
    return value


def build_mismatch_problem(family: str, field: str, sizes: Sizes, theirs: Any) -> Problem:
    """Build the problem of a part that the nearest family does not have."""
    needed = "a value" if theirs is ... else format_short_value(theirs)
    message = (
        f"no transformers class that titanrun exports has these parts: "
        f"{HUGGINGFACE_CLASS_NAMES[family]} is nearest, with {field} {needed}"
    )
    ours = format_short_value(get_dotted_value(sizes, field))
    # a field within an absent section has no location in the recipe
    shown = (
        field
        if get_dotted_value(sizes, field.rpartition(".")[0] or field) is not None
        else field.split(".")[0]
    )
    return build_size_problem(
        shown, f"{message}, but it is {ours}", f"use {needed}, or disable the export"
    )


def to_family_sizes(config: ModelConfig, family: str) -> Sizes:
    """Return the model section of the family for a model that has its parts."""
    sizes = dump_config(config)
    section = {name: sizes[name] for name in SHARED_FIELDS}
    section |= {
        "name": family,
        "init": sizes["init"],
        "attention": {name: sizes["attention"][name] for name in ("backend", "mask", "documents")},
    }
    rope = {
        name: sizes["rope"][name]
        for name in (("theta",) if family == "qwen3" else ("theta", "scaling"))
    }
    section["rope"] = rope
    if family != "gpt_oss":
        own = (
            ("hidden_dim",)
            if family in ("qwen3", "deepseek_v3")
            else ("hidden_dim", "multiple_of", "ffn_dim_multiplier")
        )
        section["feed_forward"] = {name: sizes["feed_forward"][name] for name in own}
    if family == "gpt_oss":
        section |= {"moe": sizes["moe"], "sliding_window": sizes["attention"]["window"]}
    if family == "deepseek_v3":
        latent = sizes["attention"]["latent"]
        section = {
            name: value for name, value in section.items() if name not in ("n_kv_heads", "head_dim")
        }
        section |= {name: latent[name] for name in LATENT_FIELDS}
        section |= {
            "latent_norm_eps": latent["norm_eps"],
            "n_dense_layers": expand_hidden_pattern(sizes).count("dense"),
            "num_mtp_layers": 0,
        }
    if family in ("qwen3", "deepseek_v3"):
        clamped = ("swiglu_limit", "swiglu_alpha")
        section["moe"] = (
            None
            if sizes["moe"] is None
            else {key: value for key, value in sizes["moe"].items() if key not in clamped}
        )
    return section


def read_custom_decoder_sizes(
    written: dict[str, Any], families: Mapping[str, type[ModelConfig]]
) -> Sizes:
    """Return the sizes of the model that a config.json describes.

    Raises:
        ProblemsFound: if none of the families reads it.
    """
    for family, chosen in families.items():
        if written.get("model_type") in chosen.huggingface_types:
            return from_family_sizes(family, chosen.read_huggingface_sizes(written))
    kinds = sorted(kind for chosen in families.values() for kind in chosen.huggingface_types)
    message = (
        f"config.json: model_type is {format_short_value(written.get('model_type'))}, but "
        f"model decoder reads {format_word_list(kinds, conjunction='or')}"
    )
    raise problem_error("file", message, path=("model", "hf_assets_path"))


def from_family_sizes(family: str, sizes: Sizes) -> Sizes:
    """Convert a family's sizes to those of a custom decoder."""
    made: Sizes = {name: value for name, value in sizes.items() if name in SHARED_FIELDS}
    made |= {
        "attention": {},
        "rope": {**sizes["rope"]},
        "feed_forward": {**sizes.get("feed_forward", {})},
        "moe": sizes.get("moe"),
    }
    for field, value in FAMILY_SIZES[family].items():
        first, _, last = field.rpartition(".")
        if value in (..., DENSE_THEN_EXPERTS):
            continue
        if first == "moe":
            if made["moe"] is not None:
                made["moe"] = {**made["moe"], last: None, "swiglu_alpha": None}
        elif first:
            made[first][last] = value
        else:
            made[last] = value
    made["rope"]["pairs"] = FAMILY_ROPE_PAIRS[family]
    if family == "gpt_oss":
        window = sizes["sliding_window"]
        made["attention"] |= {
            "window": window,
            "window_pattern": ["window", "full"] if window else ["window"],
        }
    if family == "deepseek_v3":
        made["attention"]["latent"] = {
            **{name: sizes[name] for name in LATENT_FIELDS},
            "norm_eps": sizes["latent_norm_eps"],
        }
        dense, experts = sizes["n_dense_layers"], sizes["n_layers"] - sizes["n_dense_layers"]
        made |= (
            {"hidden_pattern": ["dense"] * dense + ["experts"] * experts}
            if experts
            else {"moe": None}
        )
        made |= {
            "n_kv_heads": sizes["n_heads"],
            "head_dim": sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"],
        }
    return made
