"""Former names of fields, which are read for a while with a warning."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from titanrun.config.base import Config
from titanrun.config.fields import get_former_names
from titanrun.config.problems import DataPath, Origin, Problem, RelatedLocation
from titanrun.config.text_edits import build_word_fix
from titanrun.config.tree import Node
from titanrun.config.type_introspection import (
    find_choice_class,
    find_item_type,
    is_slot,
    unwrap_annotation,
)


@dataclass(frozen=True, slots=True)
class RenameResult:
    """Tree with current key names, the problems reported, and the locations of former names."""

    tree: Node
    problems: tuple[Problem, ...]
    former_keys: tuple["FormerKey", ...]


@dataclass(frozen=True, slots=True)
class FormerKey:
    """One key with its former name."""

    origin: Origin
    path: DataPath
    name: str


def rename_former_keys(model: type[Config], root: Node, data: Any) -> RenameResult:
    """Return the tree with current key names.

    `data` is the plain data of the whole recipe, which determines the components. Both names in one
    mapping are a conflict; the current key is kept.
    """
    walker = FormerKeyRenamer(data)
    tree = walker.rename_config(model, root, ())
    return RenameResult(tree, tuple(walker.problems), tuple(walker.former_keys))


@cache
def get_current_names(config: type[Config]) -> dict[str, str]:
    """Return former name -> current name for all fields of a class."""
    return {
        former: name
        for name, declared in config.model_fields.items()
        for former in get_former_names(declared)
    }


def to_current_path(model: type[Config], path: DataPath, data: Any) -> DataPath:
    """Return a path with current names. Steps that the schema does not know are unchanged."""
    holder: Any = model
    found: DataPath = ()
    for step in path:
        data = (
            data.get(step)
            if isinstance(data, dict) and isinstance(step, str)
            else find_list_item(data, step)
        )
        if isinstance(step, str) and isinstance(holder, type) and issubclass(holder, Config):
            step = get_current_names(holder).get(step, step)
            declared = holder.model_fields.get(step)
            holder = find_value_type(declared.annotation, data) if declared is not None else None
        elif isinstance(step, int):
            holder = find_value_type(holder, data)
        else:
            holder = None
        found = (*found, step)
    return found


def find_list_item(data: Any, step: str | int) -> Any:
    """Return an item of a list, or None if it does not exist."""
    return (
        data[step]
        if isinstance(data, list) and isinstance(step, int) and step < len(data)
        else None
    )


def find_value_type(annotation: Any, data: Any) -> Any:
    """Return the type that describes a value: a config class or the item type of a list.

    Return None for other types.
    """
    item = find_item_type(annotation)
    if item is not None:
        return item
    inner = unwrap_annotation(annotation)
    return find_choice_class(inner, data) if is_slot(inner) else inner


@dataclass(slots=True)
class FormerKeyRenamer:
    """Renamer that walks a tree along the configs that describe it."""

    data: Any
    problems: list[Problem] = field(default_factory=list)
    former_keys: list[FormerKey] = field(default_factory=list)

    def rename_value(self, annotation: Any, node: Node, path: DataPath, data: Any) -> Node:
        """Rename the keys in one value of a type."""
        item = find_item_type(annotation)
        if item is not None and isinstance(node.value, list):
            items = [
                self.rename_value(item, child, (*path, index), find_list_item(data, index))
                for index, child in enumerate(node.value)
            ]
            return replace(node, value=items)
        config = find_value_type(annotation, data)
        return (
            self.rename_config(config, node, path, data)
            if isinstance(config, type) and issubclass(config, Config)
            else node
        )

    def rename_config(
        self, config: type[Config], node: Node, path: DataPath, data: Any = None
    ) -> Node:
        """Rename the keys in the mapping of one config."""
        if not isinstance(node.value, dict):
            return node
        data = self.data if not path else data
        today = get_current_names(config)
        children: dict[str, Node] = {}
        for key, child in node.value.items():
            name = today.get(key, key)
            declared = config.model_fields.get(name)
            below = data.get(key) if isinstance(data, dict) else None
            inner = (
                child
                if declared is None
                else self.rename_value(declared.annotation, child, (*path, key), below)
            )
            if name != key:
                self.record_former_key(key, name, child, node.value.get(name), path)
            if name == key or name not in node.value:
                children[name] = inner
        return replace(node, value=children)

    def record_former_key(
        self, key: str, name: str, child: Node, today: Node | None, path: DataPath
    ) -> None:
        """Record one former name and report it."""
        origin = child.key or child.origin
        self.former_keys.append(FormerKey(origin, (*path, key), name))
        if today is None:
            message, hint = (
                f"'{key}' was renamed to '{name}'",
                f"write '{name}'; titanrun migrate FILE --write does it",
            )
            fix = build_word_fix(child.key, key, name)
            self.problems.append(
                Problem(
                    "deprecated", message, (*path, name), origin, "warning", hint, name, fix=fix
                )
            )
            return
        other = RelatedLocation(today.key or today.origin, f"'{name}' is also set", (*path, name))
        message = f"'{key}' is the former name of '{name}', but both are set"
        self.problems.append(
            Problem(
                "conflict", message, (*path, name), origin, hint=f"remove '{key}'", related=(other,)
            )
        )
