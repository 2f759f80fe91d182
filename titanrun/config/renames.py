"""Keys that were called otherwise once: a field's former names are read for a while, with a warning that names the new one."""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from titanrun.config.base import Config
from titanrun.config.fields import former_names
from titanrun.config.fixes import rewritten
from titanrun.config.problems import DataPath, Origin, Problem, Related
from titanrun.config.shape import bare, chosen, is_slot, item_type
from titanrun.config.tree import Node


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tree in which every key has its name of today, the problems told on the way, and where the former names stand."""

    tree: Node
    problems: tuple[Problem, ...]
    found: tuple["Former", ...]


@dataclass(frozen=True, slots=True)
class Former:
    """One key in its former spelling."""

    origin: Origin
    path: DataPath
    name: str


def renamed(model: type[Config], root: Node, data: Any) -> Renamed:
    """The tree with the names of today. `data` is plain data of the whole recipe, which says what component stands where.

    Both names in one mapping are a conflict; the key of today stays.
    """
    walker = Walker(data)
    tree = walker.config(model, root, ())
    return Renamed(tree, tuple(walker.problems), tuple(walker.found))


@cache
def names_of_today(config: type[Config]) -> dict[str, str]:
    """Former name -> name, of all fields of a class."""
    return {
        former: name
        for name, declared in config.model_fields.items()
        for former in former_names(declared)
    }


def path_of_today(model: type[Config], path: DataPath, data: Any) -> DataPath:
    """A path with the names of today; what the schema does not know stays as it is."""
    holder: Any = model
    found: DataPath = ()
    for step in path:
        data = (
            data.get(step)
            if isinstance(data, dict) and isinstance(step, str)
            else item_of(data, step)
        )
        if isinstance(step, str) and isinstance(holder, type) and issubclass(holder, Config):
            step = names_of_today(holder).get(step, step)
            declared = holder.model_fields.get(step)
            holder = entered(declared.annotation, data) if declared is not None else None
        elif isinstance(step, int):
            holder = entered(holder, data)
        else:
            holder = None
        found = (*found, step)
    return found


def item_of(data: Any, step: str | int) -> Any:
    """An item of a list, if it is there."""
    return (
        data[step]
        if isinstance(data, list) and isinstance(step, int) and step < len(data)
        else None
    )


def entered(annotation: Any, data: Any) -> Any:
    """What describes the value of a type: a config class, for a list the type of its items, else None."""
    item = item_type(annotation)
    if item is not None:
        return item
    inner = bare(annotation)
    return chosen(inner, data) if is_slot(inner) else inner


@dataclass(slots=True)
class Walker:
    """Goes through a tree along the configs that describe it."""

    data: Any
    problems: list[Problem] = field(default_factory=list)
    found: list[Former] = field(default_factory=list)

    def value(self, annotation: Any, node: Node, path: DataPath, data: Any) -> Node:
        """One value of a type."""
        item = item_type(annotation)
        if item is not None and isinstance(node.value, list):
            items = [
                self.value(item, child, (*path, index), item_of(data, index))
                for index, child in enumerate(node.value)
            ]
            return replace(node, value=items)
        config = entered(annotation, data)
        return (
            self.config(config, node, path, data)
            if isinstance(config, type) and issubclass(config, Config)
            else node
        )

    def config(self, config: type[Config], node: Node, path: DataPath, data: Any = None) -> Node:
        """The mapping of one config."""
        if not isinstance(node.value, dict):
            return node
        data = self.data if not path else data
        today = names_of_today(config)
        children: dict[str, Node] = {}
        for key, child in node.value.items():
            name = today.get(key, key)
            declared = config.model_fields.get(name)
            below = data.get(key) if isinstance(data, dict) else None
            inner = (
                child
                if declared is None
                else self.value(declared.annotation, child, (*path, key), below)
            )
            if name != key:
                self.former(key, name, child, node.value.get(name), path)
            if name == key or name not in node.value:
                children[name] = inner
        return replace(node, value=children)

    def former(self, key: str, name: str, child: Node, today: Node | None, path: DataPath) -> None:
        """Tell one former name."""
        origin = child.key or child.origin
        self.found.append(Former(origin, (*path, key), name))
        if today is None:
            message, help = (
                f"'{key}' is now called '{name}'",
                f"write '{name}'; titanrun migrate FILE --write does it",
            )
            fix = rewritten(child.key, key, name)
            self.problems.append(
                Problem(
                    "deprecated", message, (*path, name), origin, "warning", help, name, fix=fix
                )
            )
            return
        other = Related(today.key or today.origin, f"'{name}' is written too", (*path, name))
        message = f"'{key}' is the former name of '{name}', and both are written"
        self.problems.append(
            Problem(
                "conflict", message, (*path, name), origin, help=f"remove '{key}'", related=(other,)
            )
        )
