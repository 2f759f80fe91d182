"""Names of a model's modules: what patterns match, and what they were probably meant to match."""

import re
from collections.abc import Iterable, Sequence

from titanrun.config.suggest import find_closest, format_word_list

LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
NATIVE_MODULE_NAMES = {
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_b_proj": "wkv_b",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
    "lm_head": "output",
}
"""titanrun's names of the modules of transformers' decoders."""
TENSOR_NAMES = ("weight", "bias")


def translate_module_names(names: Iterable[str]) -> list[str]:
    """Return the names of modules, where those of transformers' decoders are titanrun's."""
    return [NATIVE_MODULE_NAMES.get(name, name) for name in names]


def list_module_names(parameters: Iterable[str]) -> list[str]:
    """Return the names of modules with parameters, and of the matrices of stacked experts."""
    names: dict[str, None] = {}
    for parameter in parameters:
        parts = parameter.split(".")
        if parts[-1] in TENSOR_NAMES:
            del parts[-1]
        names.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1)))
    return list(names)


def collapse_layer_numbers(names: Iterable[str]) -> list[str]:
    """Return the names with `*` for the number of a layer, without duplicates."""
    return list(dict.fromkeys(LAYER_NUMBER.sub("*", name) for name in names))


def find_native_name(pattern: str, names: Iterable[str]) -> str | None:
    """Return titanrun's name of the modules that a pattern of transformers matches, if it has one.

    The pattern is a single word: in others, more parts have other names.
    """
    meant = NATIVE_MODULE_NAMES.get(pattern)
    return meant if meant in list_name_parts(names) else None


def list_name_parts(names: Iterable[str]) -> set[str]:
    """Return the parts of the names of modules, without numbers of layers."""
    return {word for name in names for word in name.split(".") if not word.isdigit()}


def suggest_pattern(pattern: str, names: Sequence[str]) -> str:
    """Build a hint with a similar pattern, or with the names of modules."""
    words = list_name_parts(names)
    last = pattern.rpartition(".")[2]
    if NATIVE_MODULE_NAMES.get(last) in words:
        return f"transformers' {last} is called {NATIVE_MODULE_NAMES[last]} here"
    near = find_closest(pattern, words) or find_closest(pattern, collapse_layer_numbers(names))
    return (
        f"did you mean '{near}'?"
        if near
        else f"names of modules: {format_word_list(sorted(words))}"
    )
