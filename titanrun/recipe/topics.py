"""What a recipe can hold, taken apart into topics: each section, slot and component once, in the order of the schema."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe import Described, described_field, example_of, is_section
from titanrun.config.docs import field_docs
from titanrun.config.problems import DataPath
from titanrun.config.shape import bare, is_slot, item_type
from titanrun.config.tree import path_text
from titanrun.recipe import menu
from titanrun.recipe.plugins import recipe_class
from titanrun.recipe.recipe import Recipe

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """A config class and where it stands: `title` is unique, `training` or `optimizer:adamw` or `model:llama3.rope`."""

    title: str
    keys: Keys
    config: type[Config]

    @property
    def is_slot(self) -> bool:
        """Whether this is a slot, whose choices are topics of their own."""
        return is_slot(self.config)

    @property
    def component(self) -> str:
        """The component that this is, or is a section of; empty for a section of the recipe."""
        return self.title.partition(".")[0] if ":" in self.title else ""


@dataclass(frozen=True, slots=True)
class Spot:
    """A field on its way from the top of the recipe, with the component it belongs to, if any.

    `path` has indexes where a list is on the way; `value` is an example of the field, `written` that value as part of a recipe;
    both are None for a section.
    """

    holder: type[Config]
    described: Described
    component: str
    path: DataPath
    value: Any
    written: Any

    @property
    def annotation(self) -> Any:
        """The field's type."""
        return self.holder.model_fields[self.described.name].annotation


def topics() -> tuple[Topic, ...]:
    """All topics, the recipe itself first."""
    return topics_of(recipe_class())


@cache
def topics_of(recipe: type[Recipe]) -> tuple[Topic, ...]:
    """The topics of a recipe class."""
    menu.open_menu()
    found: dict[Any, Topic] = {recipe: Topic("recipe", (), recipe)}
    collect(recipe, "", (), found)
    return tuple(found.values())


def collect(config: type[Config], title: str, keys: Keys, found: dict[Any, Topic]) -> None:
    """Add the topics below `config`; a class that several sections share is described where it is met first."""
    for name, field in config.model_fields.items():
        inner = item_type(field.annotation) or bare(field.annotation)
        below = (*keys, name)
        if inner in found:
            continue
        if is_slot(inner):
            found[inner] = Topic(inner.slot if title else name, below, inner)
            for choice_name, choice in registry.choices(inner).items():
                found[choice] = Topic(f"{inner.slot}:{choice_name}", below, choice)
                collect(choice, found[choice].title, below, found)
        elif is_section(inner):
            found[inner] = Topic(f"{title}.{name}" if title else name, below, inner)
            collect(inner, found[inner].title, below, found)


def shared_section(title: str) -> list[Topic]:
    """The section of a component that `topics` describes where another one has it; nothing for any other title."""
    component, *names = title.split(".")
    of_component = next(
        (topic for topic in topics() if topic.title == component and topic.component), None
    )
    if of_component is None or not names:
        return []
    config = of_component.config
    for name in names:
        field = config.model_fields.get(name)
        inner = None if field is None else item_type(field.annotation) or bare(field.annotation)
        if inner is None or is_slot(inner) or not is_section(inner):
            return []
        config = inner
    found = Topic(title, (*of_component.keys, *names), config)
    return [] if any(topic.title == title for topic in topics()) else [found]


@dataclass(frozen=True, slots=True)
class Holder:
    """A config class on the way to a field. `steps`: each key, the component entered there, and whether a list holds it."""

    config: type[Config]
    component: str = ""
    steps: tuple[tuple[str, dict[str, Any], bool], ...] = ()


def spots(keys: Keys) -> list[Spot]:
    """The fields that `keys` may mean, one for each component that has them; none where the schema has no such path."""
    menu.open_menu()
    holders = [Holder(recipe_class())]
    for key in keys[:-1]:
        holders = [inner for holder in holders for inner in entered(holder, key)]
    return [spot(holder, keys[-1]) for holder in holders if keys[-1] in holder.config.model_fields]


def entered(holder: Holder, key: str) -> Iterator[Holder]:
    """The configs that may stand under `key`."""
    field = holder.config.model_fields.get(key)
    if field is None:
        return
    item = item_type(field.annotation)
    inner = item or bare(field.annotation)
    if is_slot(inner):
        for name, choice in registry.choices(inner).items():
            needed = {
                key: example_of(needed)
                for key, needed in choice.model_fields.items()
                if needed.is_required() and key != "name"
            }
            written = {} if name == inner.default_name else {"name": name}
            steps = (*holder.steps, (key, {**written, **needed}, item is not None))
            yield Holder(choice, f"{inner.slot}:{name}", steps)
    elif is_section(inner):
        needed = (
            {
                name: example_of(needed)
                for name, needed in inner.model_fields.items()
                if needed.is_required()
            }
            if item
            else {}
        )
        yield Holder(inner, holder.component, (*holder.steps, (key, needed, item is not None)))


def spot(holder: Holder, name: str) -> Spot:
    """The field `name` of `holder`, with an example that reads as part of a recipe."""
    field = holder.config.model_fields[name]
    description = described_field(name, field, field_docs(holder.config).get(name, ""))
    path: DataPath = tuple(
        step for key, _, in_list in holder.steps for step in ((key, 0) if in_list else (key,))
    )
    if is_section(field.annotation):
        return Spot(holder.config, description, holder.component, (*path, name), None, None)
    value = example_of(field)
    written: Any = {name: value}
    for key, around, in_list in reversed(holder.steps):
        whole = {**around, **written}
        written = {key: [whole] if in_list else whole}
    return Spot(holder.config, description, holder.component, (*path, name), value, written)


def all_paths() -> list[str]:
    """Every path that can be explained, lists without their indexes."""
    found = dict.fromkeys(
        path_text((*topic.keys, name))
        for topic in topics()
        if not topic.is_slot
        for name in topic.config.model_fields
    )
    return [*found, *(path_text(keys) for keys in second_homes() if path_text(keys) not in found)]


def second_homes() -> list[Keys]:
    """Fields of components at the further places where their slot stands: validation.dataset.path."""
    first = {topic.config: topic.keys for topic in topics()}
    found = []
    for topic in topics():
        for name, field in ({} if topic.is_slot else topic.config.model_fields).items():
            inner, keys = item_type(field.annotation) or bare(field.annotation), (*topic.keys, name)
            if is_slot(inner) and first[inner] != keys:
                found += [
                    (*keys, key)
                    for choice in registry.choices(inner).values()
                    for key in choice.model_fields
                ]
    return found
