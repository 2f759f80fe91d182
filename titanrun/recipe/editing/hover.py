"""Description of the setting at a position in a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, dump_config
from titanrun.config.describe_field import CHANGE_CLASS_MEANINGS, describe_field, is_section_type
from titanrun.config.field_docs import get_class_summary, get_field_docs
from titanrun.config.fields import is_secret
from titanrun.config.problems import DataPath, Origin
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import (
    find_annotation,
    find_config_class,
    find_field_info,
    find_value,
    is_slot,
)
from titanrun.recipe import builtins
from titanrun.recipe.comparing.resume_policy import format_resume_policy
from titanrun.recipe.editing.cursor_context import find_cursor_context
from titanrun.recipe.editing.examiner import Document, find_path_at, strip_stage
from titanrun.recipe.plugins import get_recipe_class
from titanrun.recipe.recipe import FILE_ONLY_KEYS
from titanrun.recipe.reference.explain import format_type_and_range
from titanrun.recipe.resolving.provenance import collect_value_sources


@dataclass(frozen=True, slots=True)
class Hover:
    """Description of a setting: title, text, and facts in order. `origin` is what it describes."""

    title: str
    text: str
    facts: tuple[tuple[str, str], ...]
    origin: Origin | None


def describe_position(document: Document, line: int, column: int, offset: int) -> Hover | None:
    """Return the description of what is at a position, or None.

    Args:
        document: The recipe.
        line: Line from 1.
        column: Column from 1, in code points.
        offset: The same position as an index into the text.
    """
    builtins.register_builtins()
    found = find_path_at(document, line, column)
    if found is not None:
        return describe_path(document, *found)
    context = find_cursor_context(document.text, offset, document.format)
    if context is None or context.kind != "value" or not context.path:
        return None
    return describe_path(document, context.path, None)


def describe_path(document: Document, path: DataPath, origin: Origin | None) -> Hover | None:
    """Return the description of the setting at `path`, of the component in use."""
    inside = strip_stage(path)
    if inside and inside[0] in FILE_ONLY_KEYS:
        return Hover(str(inside[0]), FILE_ONLY_KEYS[str(inside[0])], (), origin)
    model, data = get_recipe_class(), document.data
    component = find_named_component(document, inside)
    if component is not None:
        title = f"{component.slot}:{find_value(data, inside)}"
        return Hover(title, get_class_summary(component), (), origin)
    names = [step for step in inside if isinstance(step, str)]
    while inside and isinstance(inside[-1], int):
        inside = inside[:-1]
    field = find_field_info(model, data, inside)
    holder = find_config_class(model, data, inside[:-1])
    if field is None or holder is None or not names:
        return None
    text = get_field_docs(holder).get(names[-1], "")
    description = describe_field(names[-1], field, text)
    facts = [("accepts", format_type_and_range(description))]
    if not is_section_type(field.annotation):
        default = "none (required)" if description.is_required else description.default_text
        facts.append(("default", default))
    facts += list(iter_value_facts(document, path, is_secret=is_secret(field)))
    if description.metadata is not None:
        facts.append(("change", CHANGE_CLASS_MEANINGS[description.metadata.change]))
        facts.append(("resume", format_resume_policy(inside, description.metadata)))
    return Hover(format_path(inside), description.text, tuple(facts), origin)


def find_named_component(document: Document, path: DataPath) -> type[ComponentConfig] | None:
    """Return the component that the text at `path` names, or None if it names none."""
    model, data = get_recipe_class(), document.data
    value = find_value(data, path)
    if not isinstance(value, str):
        return None
    slot_path = path[:-1] if path[-1:] == ("name",) else path
    slot: Any = find_annotation(model, data, slot_path) if slot_path else None
    if not is_slot(slot) or value not in registry.get_choice_names(slot):
        return None
    found: type[ComponentConfig] = registry.load_choice(slot, value)
    return found


def iter_value_facts(
    document: Document, path: DataPath, *, is_secret: bool
) -> Iterator[tuple[str, str]]:
    """Yield the value of the run and its source, if the recipe resolves to one run."""
    if len(document.runs) != 1 or is_secret:
        return
    (resolved,) = document.runs
    value = find_value(dump_config(resolved.run), path)
    if value is None or isinstance(value, dict | list):
        return
    yield "value", to_flow_yaml(value)
    source = collect_value_sources(resolved).get(path)
    if source is not None and source.shadowed:
        yield "replaces", ", ".join(str(origin) for origin in source.shadowed)
