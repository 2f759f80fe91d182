"""Topics of the recipe schema: each section, slot and component once, in schema order."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from titanrun.config import registry
from titanrun.config.base import Config
from titanrun.config.describe_field import (
    FieldDescription,
    describe_field,
    get_example_value,
    is_section_type,
)
from titanrun.config.field_docs import get_field_docs
from titanrun.config.problems import DataPath
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import find_item_type, is_slot, unwrap_annotation
from titanrun.recipe import builtins
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import Recipe

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SchemaTopic:
    """A config class and its path in a recipe.

    `title` is unique: `training` or `optimizer:adamw` or `model:llama3.rope`.
    """

    title: str
    keys: Keys
    config: type[Config]

    @property
    def is_slot(self) -> bool:
        """Whether this is a slot, whose components are separate topics."""
        return is_slot(self.config)

    @property
    def component(self) -> str:
        """Component that this is or belongs to; empty for a section of the recipe."""
        return self.title.partition(".")[0] if ":" in self.title else ""


@dataclass(frozen=True, slots=True)
class FieldLocation:
    """A field with its path from the top of the recipe, and its component if any.

    `path` has indexes if a list is on the way. `example` is an example of the field,
    `recipe_example` that value as part of a recipe; both are None for a section.
    """

    holder: type[Config]
    description: FieldDescription
    component: str
    path: DataPath
    example: Any
    recipe_example: Any

    @property
    def annotation(self) -> Any:
        """Type of the field."""
        return self.holder.model_fields[self.description.name].annotation


def get_topics() -> tuple[SchemaTopic, ...]:
    """Return all topics, the recipe itself first."""
    return collect_topics(get_recipe_class())


@cache
def collect_topics(recipe: type[Recipe]) -> tuple[SchemaTopic, ...]:
    """Return the topics of a recipe class."""
    builtins.register_builtins()
    found: dict[Any, SchemaTopic] = {recipe: SchemaTopic("recipe", (), recipe)}
    add_topics_below(recipe, "", (), found)
    return tuple(found.values())


def add_topics_below(
    config: type[Config], title: str, keys: Keys, found: dict[Any, SchemaTopic]
) -> None:
    """Add the topics below `config`.

    A class that several sections share is added at its first occurrence.
    """
    for name, field in config.model_fields.items():
        inner = find_item_type(field.annotation) or unwrap_annotation(field.annotation)
        below = (*keys, name)
        if inner in found:
            continue
        if is_slot(inner):
            found[inner] = SchemaTopic(inner.slot if title else name, below, inner)
            for choice_name, choice in registry.load_choices(inner).items():
                found[choice] = SchemaTopic(f"{inner.slot}:{choice_name}", below, choice)
                add_topics_below(choice, found[choice].title, below, found)
        elif is_section_type(inner):
            found[inner] = SchemaTopic(f"{title}.{name}" if title else name, below, inner)
            add_topics_below(inner, found[inner].title, below, found)


def find_shared_section(title: str) -> list[SchemaTopic]:
    """Return the section of a component whose topic is listed under another component.

    Return an empty list for any other title.
    """
    component, *names = title.split(".")
    of_component = next(
        (topic for topic in get_topics() if topic.title == component and topic.component), None
    )
    if of_component is None or not names:
        return []
    config = of_component.config
    for name in names:
        field = config.model_fields.get(name)
        inner = (
            None
            if field is None
            else find_item_type(field.annotation) or unwrap_annotation(field.annotation)
        )
        if inner is None or is_slot(inner) or not is_section_type(inner):
            return []
        config = inner
    found = SchemaTopic(title, (*of_component.keys, *names), config)
    return [] if any(topic.title == title for topic in get_topics()) else [found]


@dataclass(frozen=True, slots=True)
class ConfigLocation:
    """A config class on the way to a field.

    `steps` are the keys, each with the component entered there, and whether a list holds it.
    """

    config: type[Config]
    component: str = ""
    steps: tuple[tuple[str, dict[str, Any], bool], ...] = ()


def find_field_locations(keys: Keys) -> list[FieldLocation]:
    """Return the fields that `keys` may mean, one for each component that has them.

    Return an empty list if the schema has no such path.
    """
    builtins.register_builtins()
    holders = [ConfigLocation(get_recipe_class())]
    for key in keys[:-1]:
        holders = [inner for holder in holders for inner in iter_entered_configs(holder, key)]
    return [
        build_field_location(holder, keys[-1])
        for holder in holders
        if keys[-1] in holder.config.model_fields
    ]


def iter_entered_configs(holder: ConfigLocation, key: str) -> Iterator[ConfigLocation]:
    """Yield the configs that `key` may hold."""
    field = holder.config.model_fields.get(key)
    if field is None:
        return
    item = find_item_type(field.annotation)
    inner = item or unwrap_annotation(field.annotation)
    if is_slot(inner):
        for name, choice in registry.load_choices(inner).items():
            needed = {
                key: get_example_value(needed)
                for key, needed in choice.model_fields.items()
                if needed.is_required() and key != "name"
            }
            written = {} if name == inner.default_name else {"name": name}
            steps = (*holder.steps, (key, {**written, **needed}, item is not None))
            yield ConfigLocation(choice, f"{inner.slot}:{name}", steps)
    elif is_section_type(inner):
        # a section that may be missing is written as a whole
        is_whole = item is not None or field.default is None
        needed = {
            name: get_example_value(needed)
            for name, needed in inner.model_fields.items()
            if is_whole and needed.is_required()
        }
        yield ConfigLocation(
            inner, holder.component, (*holder.steps, (key, needed, item is not None))
        )


def build_field_location(holder: ConfigLocation, name: str) -> FieldLocation:
    """Return the field `name` of `holder` with an example as part of a recipe."""
    field = holder.config.model_fields[name]
    description = describe_field(name, field, get_field_docs(holder.config).get(name, ""))
    path: DataPath = tuple(
        step for key, _, in_list in holder.steps for step in ((key, 0) if in_list else (key,))
    )
    if is_section_type(field.annotation):
        return FieldLocation(
            holder.config, description, holder.component, (*path, name), None, None
        )
    value = get_example_value(field)
    written: Any = {name: value}
    for key, around, in_list in reversed(holder.steps):
        whole = {**around, **written}
        written = {key: [whole] if in_list else whole}
    return FieldLocation(
        holder.config, description, holder.component, (*path, name), value, written
    )


def list_explainable_paths() -> list[str]:
    """Return every path that can be explained, lists without their indexes."""
    found = dict.fromkeys(
        format_path((*topic.keys, name))
        for topic in get_topics()
        if not topic.is_slot
        for name in topic.config.model_fields
    )
    return [
        *found,
        *(format_path(keys) for keys in list_other_slot_paths() if format_path(keys) not in found),
    ]


def list_other_slot_paths() -> list[Keys]:
    """Return component fields at the further places of their slot: validation.dataset.path."""
    first = {topic.config: topic.keys for topic in get_topics()}
    found = []
    for topic in get_topics():
        for name, field in ({} if topic.is_slot else topic.config.model_fields).items():
            inner, keys = (
                find_item_type(field.annotation) or unwrap_annotation(field.annotation),
                (*topic.keys, name),
            )
            if is_slot(inner) and first[inner] != keys:
                found += [
                    (*keys, key)
                    for choice in registry.load_choices(inner).values()
                    for key in choice.model_fields
                ]
    return found
