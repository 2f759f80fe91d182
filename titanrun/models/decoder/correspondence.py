"""Which family with a class in transformers a decoder of ingredients is, and the sizes of one in the words of the other."""

from collections.abc import Mapping
from typing import Any

from titanrun.config.base import dump
from titanrun.config.problems import Problem, fail
from titanrun.config.render import shorten
from titanrun.config.suggest import listing
from titanrun.models.shared.config import ModelConfig, Sizes
from titanrun.models.shared.decoder_config import conflict

SHARED = (
    "vocab_size",
    "max_seq_len",
    "dim",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "norm_eps",
    "tie_word_embeddings",
)
FIRST_DENSE = "dense layers, then experts in all others"
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
PLAIN: Sizes = {
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
"""The ingredients that most families have."""
INGREDIENTS: dict[str, Sizes] = {
    "llama3": {**PLAIN, "moe": None},
    "qwen3": {
        **PLAIN,
        "attention.qk_norm": True,
        "rope.pairs": "halves",
        "rope.scaling": None,
        "moe.swiglu_limit": None,
    },
    "gpt_oss": {
        **{name: value for name, value in PLAIN.items() if name != "attention.window"},
        "attention.bias": "all",
        "attention.sinks": True,
        "attention.window_pattern": ["window", "full"],
        "rope.pairs": "halves",
        "moe.swiglu_limit": ...,
    },
    "deepseek_v3": {
        **PLAIN,
        "attention.latent": ...,
        "rope.pairs": "neighbours",
        "hidden_pattern": FIRST_DENSE,
        "moe": ...,
        "moe.swiglu_limit": None,
    },
}
"""What each family is made of, by the name of the field; ... is any value but null. The rest is free."""
# of Llama both, since its mapping turns the ones into the others
PAIRS_OF = {
    "llama3": "neighbours",
    "qwen3": "halves",
    "gpt_oss": "halves",
    "deepseek_v3": "neighbours",
}
PATTERN_OF = {"attention.window_pattern": "attention.window", "hidden_pattern": "moe"}
CLASSES = {"llama3": "Llama", "qwen3": "Qwen3", "gpt_oss": "GptOss", "deepseek_v3": "DeepseekV3"}


def nearest(config: ModelConfig) -> tuple[str, list[Problem]]:
    """The family that most of the ingredients are of, and the problem with each that is another's."""
    sizes = dump(config)
    found = {family: differences(sizes, wanted) for family, wanted in INGREDIENTS.items()}
    family = min(found, key=lambda name: len(found[name]))
    return family, [
        difference(family, field, sizes, INGREDIENTS[family][field]) for field in found[family]
    ]


def differences(sizes: Sizes, wanted: Sizes) -> list[str]:
    """The fields in which a model is another than a family's."""
    return [field for field, value in wanted.items() if not agrees(sizes, field, value)]


def agrees(sizes: Sizes, field: str, wanted: Any) -> bool:
    """Whether a field is what a family has, or a pattern of what the model does not have."""
    value = value_of(sizes, field)
    if field in PATTERN_OF and value_of(sizes, PATTERN_OF[field]) is None:
        return True
    if wanted is ...:
        return value is not None
    if wanted == FIRST_DENSE:
        kinds = kinds_of(sizes)
        return kinds == sorted(kinds)
    return bool(value == wanted)


def kinds_of(sizes: Sizes) -> list[str]:
    """What the hidden part of each layer is, dense or experts."""
    pattern = sizes["hidden_pattern"]
    return [pattern[layer % len(pattern)] for layer in range(sizes["n_layers"])]


def value_of(sizes: Sizes, field: str) -> Any:
    """The value at a dotted name; None within what is null."""
    value: Any = sizes
    for step in field.split("."):
        value = None if value is None else value[step]
    return value


def difference(family: str, field: str, sizes: Sizes, theirs: Any) -> Problem:
    """An ingredient that the nearest family does not have."""
    needed = "a value" if theirs is ... else shorten(theirs)
    message = f"no class of transformers that titanrun writes has these ingredients: {CLASSES[family]} is nearest, with {field} {needed}"
    ours = shorten(value_of(sizes, field))
    # a field within an absent section has no place of its own
    shown = (
        field
        if value_of(sizes, field.rpartition(".")[0] or field) is not None
        else field.split(".")[0]
    )
    return conflict(shown, f"{message}, and here it is {ours}", f"use {needed}, or export nothing")


def family_sizes(config: ModelConfig, family: str) -> Sizes:
    """The model section of the family for a model that has its ingredients."""
    sizes = dump(config)
    section = {name: sizes[name] for name in SHARED}
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
        section |= {name: latent[name] for name in LATENT}
        section |= {
            "latent_norm_eps": latent["norm_eps"],
            "n_dense_layers": kinds_of(sizes).count("dense"),
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


def read_sizes(written: dict[str, Any], families: Mapping[str, type[ModelConfig]]) -> Sizes:
    """The ingredients of the model that a config.json describes. Raises ProblemsFound for one that no family here reads."""
    for family, chosen in families.items():
        if written.get("model_type") in chosen.huggingface_types:
            return ingredients_of(family, chosen.sizes_from_huggingface(written))
    kinds = sorted(kind for chosen in families.values() for kind in chosen.huggingface_types)
    message = f"config.json: model_type is {shorten(written.get('model_type'))}, and a decoder is read from {listing(kinds, last='or')}"
    raise fail("file", message, path=("model", "hf_assets_path"))


def ingredients_of(family: str, sizes: Sizes) -> Sizes:
    """A family's sizes in the words of the decoder."""
    made: Sizes = {name: value for name, value in sizes.items() if name in SHARED}
    made |= {
        "attention": {},
        "rope": {**sizes["rope"]},
        "feed_forward": {**sizes.get("feed_forward", {})},
        "moe": sizes.get("moe"),
    }
    for field, value in INGREDIENTS[family].items():
        first, _, last = field.rpartition(".")
        if value in (..., FIRST_DENSE):
            continue
        if first == "moe":
            if made["moe"] is not None:
                made["moe"] = {**made["moe"], last: None, "swiglu_alpha": None}
        elif first:
            made[first][last] = value
        else:
            made[last] = value
    made["rope"]["pairs"] = PAIRS_OF[family]
    if family == "gpt_oss":
        window = sizes["sliding_window"]
        made["attention"] |= {
            "window": window,
            "window_pattern": ["window", "full"] if window else ["window"],
        }
    if family == "deepseek_v3":
        made["attention"]["latent"] = {
            **{name: sizes[name] for name in LATENT},
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
