"""Every setting that a recipe can hold, and the test that tests/recipe/leaves.yaml names for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from types import NoneType
from typing import Any

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.compose import Composer
from titanrun.config.describe_field import get_example_value, is_section_type
from titanrun.config.fields import find_field_metadata
from titanrun.config.read_source import read_source
from titanrun.config.tree import Node, remove_paths, to_plain_data
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_item_type,
    get_literal_values,
    is_slot,
    unwrap_annotation,
)
from titanrun.recipe import builtins
from titanrun.recipe.recipe import Recipe

TABLE = Path(__file__).parents[1] / "tests" / "recipe" / "leaves.yaml"
NOT_BUILT = "not-built"
# what is read from the text of a recipe and from no config: stages become recipes of their own, and
# of a floor without a decay there is only a warning
READ_FROM_TEXT = ("stages", "lr_scheduler:constant.min_lr_factor")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A setting.

    Attributes:
        name: As in the table.
        keys: The place in a recipe.
        holder: What declares it.
        component: What has it, if any.
        slot: What the component fills, if any.
    """

    name: str
    keys: tuple[str, ...]
    holder: type[Config]
    component: type[ComponentConfig] | None = None
    slot: "Leaf | None" = None

    @property
    def field(self) -> FieldInfo:
        """Its declaration."""
        return self.holder.model_fields[self.keys[-1]]

    @property
    def capability(self) -> str | None:
        """What is not built, if anything."""
        setting = find_field_metadata(self.field)
        return None if setting is None else setting.not_built

    @property
    def has_a_choice(self) -> bool:
        """Whether more than one value is allowed."""
        annotation = self.field.annotation
        if self.name in READ_FROM_TEXT:
            return True
        return annotation is not NoneType and (
            len(get_literal_values(annotation)) != 1
            or accepts_auto(annotation)
            or accepts_null(annotation)
        )


@cache
def leaves() -> dict[str, Leaf]:
    """Every setting of the recipe and of every registered component, each component once."""
    builtins.register_builtins()
    slots: dict[type[ComponentConfig], Leaf] = {}
    found = list(walk(Recipe, Leaf("", (), Recipe), slots))
    done: set[type[ComponentConfig]] = set()
    while rest := [slot for slot in slots if slot not in done]:
        for slot in rest:
            done.add(slot)
            for name, choice in registry.load_choices(slot).items():
                found += walk(
                    choice,
                    Leaf(f"{slot.slot}:{name}.", slots[slot].keys, choice, choice, slots[slot]),
                    slots,
                )
    return {leaf.name: leaf for leaf in found}


def walk(
    config: type[Config], above: Leaf, slots: dict[type[ComponentConfig], Leaf]
) -> Iterator[Leaf]:
    """Yield the settings of one config and its sections.

    The first place of each slot on the way goes into `slots`.
    """
    for name, field in config.model_fields.items():
        inner = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
        leaf = Leaf(above.name + name, (*above.keys, name), config, above.component, above.slot)
        if is_section_type(inner):
            yield from walk(
                inner, Leaf(f"{leaf.name}.", leaf.keys, inner, above.component, above.slot), slots
            )
        elif name != "name" or config is not above.component:
            yield leaf
            if is_slot(inner):
                slots.setdefault(inner, leaf)


def table() -> dict[str, str]:
    """Return what leaves.yaml says.

    Each value is a test, `folder/file.py::function` or `...::function[case]` below tests/, or
    not-built.
    """
    read = to_plain_data(read_source(str(TABLE)))
    assert isinstance(read, dict)
    return read


def ignore(leaf: Leaf) -> None:
    """From now on, in this process, the setting reads as if nobody had written it."""
    if leaf.name in READ_FROM_TEXT:
        ignore_in_files(leaf.keys)
        return
    field, key = leaf.field, leaf.keys[-1]
    instead = unwritten(field)
    holder = next(config for config in leaf.holder.__mro__ if key in get_annotations(config))
    read = holder.__getattribute__

    def read_all_but_one(config: Any, name: str) -> Any:
        return instead if name == key else read(config, name)

    holder.__getattribute__ = read_all_but_one  # type: ignore[method-assign, assignment]


def ignore_in_files(path: tuple[str, ...]) -> None:
    """From now on, in this process, no file has a value there."""
    read_file = Composer.read_file

    def read_all_but_one(composer: Composer, *arguments: Any) -> Node | None:
        root = read_file(composer, *arguments)
        return root and remove_paths(root, [path])

    Composer.read_file = read_all_but_one  # type: ignore[method-assign]


def unwritten(field: FieldInfo) -> Any:
    """Return the default, or for a required field something that fits."""
    if not field.is_required():
        return field.get_default(call_default_factory=True, validated_data={})
    inner = unwrap_annotation(field.annotation)
    if is_slot(inner):
        choice = next(iter(registry.load_choices(inner).values()))
        return choice.model_validate(
            {
                name: get_example_value(needed)
                for name, needed in choice.model_fields.items()
                if needed.is_required()
            }
        )
    return get_example_value(field)
