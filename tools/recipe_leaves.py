"""Every setting that a recipe can hold, and the test that tests/recipe/leaves.yaml names for it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import get_annotations
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.describe import example_of, is_section
from titanrun.config.fields import setting_of
from titanrun.config.shape import accepts_auto, accepts_null, bare, is_slot, item_type, options
from titanrun.config.source import read_source
from titanrun.config.tree import plain
from titanrun.recipe import menu
from titanrun.recipe.recipe import Recipe

TABLE = Path(__file__).parents[1] / "tests" / "recipe" / "leaves.yaml"
NOT_BUILT = "not-built"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A setting. `name` as in the table; `keys` in a recipe; `holder` declares it; `component` has it and fills `slot`, if any."""

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
        setting = setting_of(self.field)
        return None if setting is None else setting.not_built

    @property
    def has_a_choice(self) -> bool:
        """Whether more than one value is allowed."""
        annotation = self.field.annotation
        return len(options(annotation)) != 1 or accepts_auto(annotation) or accepts_null(annotation)


@cache
def leaves() -> dict[str, Leaf]:
    """Every setting of the recipe and of every registered component, each component once."""
    menu.open_menu()
    slots: dict[type[ComponentConfig], Leaf] = {}
    found = list(walk(Recipe, Leaf("", (), Recipe), slots))
    done: set[type[ComponentConfig]] = set()
    while rest := [slot for slot in slots if slot not in done]:
        for slot in rest:
            done.add(slot)
            for name, choice in registry.choices(slot).items():
                found += walk(
                    choice,
                    Leaf(f"{slot.slot}:{name}.", slots[slot].keys, choice, choice, slots[slot]),
                    slots,
                )
    return {leaf.name: leaf for leaf in found}


def walk(
    config: type[Config], above: Leaf, slots: dict[type[ComponentConfig], Leaf]
) -> Iterator[Leaf]:
    """The settings of one config and its sections; the first place of each slot on the way goes into `slots`."""
    for name, field in config.model_fields.items():
        inner = item_type(field.annotation) or bare(field.annotation)
        leaf = Leaf(above.name + name, (*above.keys, name), config, above.component, above.slot)
        if is_section(inner):
            yield from walk(
                inner, Leaf(f"{leaf.name}.", leaf.keys, inner, above.component, above.slot), slots
            )
        elif name != "name" or config is not above.component:
            yield leaf
            if is_slot(inner):
                slots.setdefault(inner, leaf)


def table() -> dict[str, str]:
    """What leaves.yaml says: a test, `folder/file.py::function` or `...::function[case]` below tests/, or not-built."""
    read = plain(read_source(str(TABLE)))
    assert isinstance(read, dict)
    return read


def ignore(leaf: Leaf) -> None:
    """From now on, in this process, the setting reads as if nobody had written it."""
    field, key = leaf.field, leaf.keys[-1]
    instead = unwritten(field)
    holder = next(config for config in leaf.holder.__mro__ if key in get_annotations(config))
    read = holder.__getattribute__

    def read_all_but_one(config: Any, name: str) -> Any:
        return instead if name == key else read(config, name)

    holder.__getattribute__ = read_all_but_one  # type: ignore[method-assign, assignment]


def unwritten(field: FieldInfo) -> Any:
    """The default, or for a required field something that fits."""
    if not field.is_required():
        return field.get_default(call_default_factory=True, validated_data={})
    inner = bare(field.annotation)
    if is_slot(inner):
        choice = next(iter(registry.choices(inner).values()))
        return choice.model_validate(
            {
                name: example_of(needed)
                for name, needed in choice.model_fields.items()
                if needed.is_required()
            }
        )
    return example_of(field)
