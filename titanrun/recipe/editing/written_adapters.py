"""Settings of adapters beside the converter that the recipe has for them."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from titanrun.components.converters.config import AdapterConfig, ConverterConfig
from titanrun.config.problems import DataPath, Problem
from titanrun.config.registry import load_choices
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import Node, to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.recipe.editing.component_meanings import (
    ADAPTER_KEYS,
    ADAPTER_SECTIONS,
    collect_adapter_settings,
    to_word,
)

CONVERTERS = "converters"
PLACES: tuple[DataPath, ...] = ((), ("training",))
"""Mappings in which settings of adapters are expected."""


def add_adapter_hints(problems: Iterable[Problem], tree: Node) -> list[Problem]:
    """Return the problems; those of settings of adapters name the converter that has them.

    A converter that is written anew would lose the other settings.

    Args:
        problems: Problems of single keys and values.
        tree: The recipe.
    """
    found = list(problems)
    if not any(is_adapter_key(problem) for problem in found):
        return found
    data = to_plain_data(tree)
    index = find_adapter_index(data)
    if index is None:
        return found
    return [
        add_adapter_hint(problem, data, index) if is_adapter_key(problem) else problem
        for problem in found
    ]


def is_adapter_key(problem: Problem) -> bool:
    """Return whether a problem is about a setting or a section of adapters."""
    if problem.code != "unknown-key" or problem.path[:-1] not in PLACES:
        return False
    return to_word(str(problem.path[-1])) in (*ADAPTER_KEYS, *ADAPTER_SECTIONS)


def find_adapter_index(data: Any) -> int | None:
    """Return the index of the first converter of adapters, None if there is none."""
    listed = find_value(data, (CONVERTERS,))
    known = load_choices(ConverterConfig)
    for index, converter in enumerate(listed if isinstance(listed, list) else ()):
        choice = known.get(get_adapter_name(converter))
        if choice is not None and issubclass(choice, AdapterConfig):
            return index
    return None


def get_adapter_name(converter: Any) -> str:
    """Return the name of a converter, which may stand for it."""
    return str(converter.get("name") if isinstance(converter, dict) else converter)


def add_adapter_hint(problem: Problem, data: Any, index: int) -> Problem:
    """Return a problem with the converter that has the settings, if they are known.

    All settings that stand beside each other in a file are told together.
    """
    key, value = str(problem.path[-1]), find_value(data, problem.path)
    is_setting = to_word(key) in ADAPTER_KEYS
    settings = collect_adapter_settings({key: value} if is_setting else value)
    if not settings or isinstance(settings.get("target_modules"), str):
        return problem
    if problem.origin is not None and problem.origin.source.kind == "override":
        place = f"{CONVERTERS}[{index}]"
        words = [f"{place}.{name}={to_flow_yaml(one)}" for name, one in settings.items()]
        return replace(problem, hint=f"write {shlex.join(words)}")
    if is_setting:
        settings = collect_adapter_settings(find_value(data, problem.path[:-1]))
    return replace(problem, hint=describe_in_place(settings, data[CONVERTERS], index))


def describe_in_place(settings: Mapping[str, Any], converters: Sequence[Any], index: int) -> str:
    """Return the converter with further settings, which a file has in place of the written one."""
    converter = converters[index]
    written = converter if isinstance(converter, dict) else {"name": converter}
    others = {key: one for key, one in written.items() if to_word(key) not in ADAPTER_KEYS}
    whole = to_flow_yaml({**others, **collect_adapter_settings(written), **settings})
    if len(converters) == 1:
        return f"write {CONVERTERS}: [{whole}]"
    return f"write {whole} in place of {CONVERTERS}[{index}]"
