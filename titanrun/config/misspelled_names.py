"""Components and sections with a misspelled name, read as the one that is certainly meant.

Otherwise mistakes among their settings would be told only once the name is right.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.problems import DataPath, Problem
from titanrun.config.suggest import find_closest, is_respelling, remove_slot_word
from titanrun.config.tree import Node, find_node, replace_node, replace_text
from titanrun.config.type_introspection import (
    find_annotation,
    find_config_class,
    find_value,
    is_slot,
)

NAME = "name"


def replace_misspelled_names(
    model: type[Config], root: Node, data: Any, problems: Iterable[Problem]
) -> tuple[Node, list[DataPath]]:
    """Return the tree with the names that are certainly meant, and the paths below them.

    These are names of components, and keys of mappings. `problems` are those of the tree, which has
    the plain values `data`.
    """
    places: list[DataPath] = []
    for problem in problems:
        node, meant = find_node(root, problem.path), problem.suggestion
        if node is None or meant is None:
            continue
        if problem.code == "unknown-name" and is_certain_component(model, data, problem, node):
            root = replace_text(root, problem.path, meant)
            places.append(problem.path[:-1])
        if problem.code == "unknown-key" and is_certain_section(model, data, problem, node):
            root = rename_key(root, problem.path, meant)
            places.append((*problem.path[:-1], meant))
    return root, places


def is_certain_component(model: type[Config], data: Any, problem: Problem, node: Node) -> bool:
    """Return whether the suggested name of a component with settings is certainly meant."""
    if problem.path[-1] != NAME or not isinstance(node.value, str):
        return False
    slot: Any = find_annotation(model, data, problem.path[:-1])
    return is_slot(slot) and is_certain_name(
        remove_slot_word(node.value, slot.slot),
        str(problem.suggestion),
        registry.get_choice_names(slot),
    )


def is_certain_section(model: type[Config], data: Any, problem: Problem, node: Node) -> bool:
    """Return whether the suggested key of a mapping is certainly meant, and not given too."""
    holder = find_config_class(model, data, problem.path[:-1])
    given = find_value(data, (*problem.path[:-1], str(problem.suggestion)))
    if holder is None or given is not None or not isinstance(node.value, dict):
        return False
    return is_certain_name(str(problem.path[-1]), str(problem.suggestion), holder.model_fields)


def rename_key(root: Node, path: DataPath, name: str) -> Node:
    """Return the tree with another name for the key at a path."""
    parent = find_node(root, path[:-1])
    assert parent is not None and isinstance(parent.value, dict)
    entries = {name if key == path[-1] else key: node for key, node in parent.value.items()}
    return replace_node(root, path[:-1], replace(parent, value=entries))


def is_certain_name(written: str, meant: str, names: Iterable[str]) -> bool:
    """Return whether a written name is another spelling of one, or close to a single one."""
    known = list(names)
    near = [name for name in known if find_closest(written, [name]) is not None]
    return near == [meant] or is_respelling(written, meant, known)
