"""Hints about the value to write, derived from the field."""

from typing import Any

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    is_slot,
    unwrap_annotation,
)
from titanrun.config.types import AUTO

ENABLE = "enable"
# spellings of null in other languages
NULL_WORDS = {"none", "nil", "off", "no", "false", "disabled", "never"}
DEFAULT_WORDS = {"default", "auto"}


def find_value_hint(field: FieldInfo | None, value: Any, *, is_empty: bool) -> str | None:
    """Return the text to write instead of `value`, or None if only the author can know.

    `is_empty` says that the key has no value.
    """
    if field is None:
        return None
    inner = unwrap_annotation(field.annotation)
    if isinstance(inner, type) and issubclass(inner, Config):
        return find_mapping_hint(inner, value, is_empty=is_empty, is_required=field.is_required())
    if value is None:
        return find_default_hint(field)
    if type(value) is int and value == -1:  # other frameworks write -1 for automatic or off
        return (
            f"write {AUTO}"
            if accepts_auto(field.annotation)
            else "write null"
            if accepts_null(field.annotation)
            else None
        )
    word = "false" if value is False else value.lower() if isinstance(value, str) else None
    if word == "null" and accepts_null(field.annotation):
        return "write null without quotes"
    if word in NULL_WORDS and accepts_null(field.annotation):
        return "write null"
    return find_default_hint(field) if word in DEFAULT_WORDS else None


def find_default_hint(field: FieldInfo) -> str | None:
    """Return a hint about the effect of leaving a value out."""
    default = (
        None
        if field.is_required()
        else dump_value(field.get_default(call_default_factory=True, validated_data={}))
    )
    return (
        None
        if default is None
        else f"write a value, or leave it out: the default is {to_flow_yaml(default)}"
    )


def find_path_hint(slot: type[ComponentConfig], path: str) -> str | None:
    """Return a hint for a path that was written in the place of a component's name."""
    known = registry.load_choices(slot)
    # in order of declaration: the simplest choice comes first
    takers = sorted(
        (name for name in known if "path" in known[name].model_fields),
        key=[*registry.iter_loaded_choice_names(slot)].index,
    )
    return (
        f"write {{name: {takers[0]}, path: {path}}}; "
        f"names that take a path: {format_word_list(takers, conjunction='and')}"
        if takers
        else None
    )


def find_mapping_hint(
    inner: type[Config], value: Any, *, is_empty: bool, is_required: bool
) -> str | None:
    """Return a hint for a value in the place of a section or a component."""
    if is_empty:
        return "write its keys below it, indented" + ("" if is_required else ", or leave it out")
    if isinstance(value, list):
        return "remove the brackets or dashes: this is one mapping, not a list of them"
    if isinstance(value, bool) and ENABLE in inner.model_fields:
        return f"write {{{ENABLE}: {to_flow_yaml(value)}}}"
    if value is None or is_slot(inner):
        return None
    return "write its keys below it, indented, one `key: value` a line"
