"""Hints about the value to write, derived from the field."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from titanrun.config import registry
from titanrun.config.base import ComponentConfig, Config, dump_value
from titanrun.config.describe_field import (
    find_unit_kind,
    get_annotated_type,
    get_default_data,
    get_example_value,
)
from titanrun.config.diagnostics import format_short_value
from titanrun.config.fields import get_code_kind
from titanrun.config.number_messages import ErrorMessage
from titanrun.config.override_parser import DASHES
from titanrun.config.problems import DataPath
from titanrun.config.redaction import star_out_assigned_secrets
from titanrun.config.serialize import format_readable_scalar, to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import Node, format_path
from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_item_type,
    get_literal_values,
    is_slot,
    unwrap_annotation,
)
from titanrun.config.types import AUTO
from titanrun.config.yaml_scalars import BOOLEAN_WORDS

ENABLE, NAME = "enable", "name"
MAX_ENTRIES = 160
"""Longest list that a hint writes out."""
# spellings of null in other languages
NULL_WORDS = {"none", "nil", "off", "no", "false", "disabled", "never"}
# what runs a script, by the suffix of its file
SCRIPT_PROGRAMS = {".py": "python", ".sh": "sh"}
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
    literals = get_literal_values(field.annotation)
    if len(literals) == 1 and isinstance(literals[0], str) and is_switched_on(value):
        null = ", or null" if accepts_null(field.annotation) else ""
        return f"write {literals[0]}{null}"
    word = "false" if value is False else value.lower() if isinstance(value, str) else None
    if word == "null" and accepts_null(field.annotation):
        return "write null without quotes"
    if word in NULL_WORDS and accepts_null(field.annotation):
        return "write null"
    if word in DEFAULT_WORDS:
        return find_default_hint(field)
    return find_number_hint(field) if is_switch(value) or isinstance(value, str) else None


def is_switch(value: Any) -> bool:
    """Return whether a value only says that something is on or off."""
    return isinstance(value, bool) or (isinstance(value, str) and value.lower() in BOOLEAN_WORDS)


def is_switched_on(value: Any) -> bool:
    """Return whether a value only says that something is on: true, or yes."""
    return value is True or (isinstance(value, str) and BOOLEAN_WORDS.get(value.lower()) == "true")


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


def find_number_hint(field: FieldInfo) -> str | None:
    """Return what to write for a field of numbers, also with units, and None for other fields."""
    unit = find_unit_kind(get_annotated_type(field))
    if unit is None and unwrap_annotation(field.annotation) not in (int, float):
        return None
    what = "a number" if unit is None or unit.accepts_number else "a value"
    default = None if field.is_required() else get_default_data(field)
    example = get_example_value(field)
    such_as = "" if example in (None, default) else f", such as {format_readable_scalar(example)}"
    told = "" if default is None else f"; the default is {format_readable_scalar(default)}"
    return f"write {what}{such_as}{told}"


CHAT = "chat"
"""Dataset of conversations."""


def find_path_hint(slot: type[ComponentConfig], path: str) -> str | None:
    """Return a hint for a path that was written in the place of a component's name."""
    known = registry.load_choices(slot)
    script = find_script_hint(slot.slot, known, path)
    if script is not None:
        return script
    # in order of declaration: the simplest choice comes first
    names = sorted(known, key=[*registry.iter_loaded_choice_names(slot)].index)
    takers = [name for name in names if "path" in known[name].model_fields]
    if not takers:
        return None
    ways = [f"{{name: {takers[0]}, path: {path}}}"]
    if CHAT in takers:
        ways = [f"{{name: {CHAT}, path: {path}}} for conversations", f"{ways[0]} for texts"]
    holders = [name for name in names if "dataset" in known[name].model_fields]
    if holders:
        dataset = f"dataset: {{name: {CHAT}, path: {path}}}"
        ways.insert(0, f"{{name: {holders[0]}, {dataset}}} for conversations")
    return (
        f"write {' or '.join(ways)}; "
        f"names that take a path: {format_word_list(takers, conjunction='and')}"
    )


def is_script(path: str) -> bool:
    """Return whether a path names a script by its suffix."""
    return Path(path).suffix in SCRIPT_PROGRAMS


def find_script_hint(
    slot: str, known: Mapping[str, type[ComponentConfig]], path: str
) -> str | None:
    """Return the component that runs a script, None for other files and if none runs commands."""
    program = SCRIPT_PROGRAMS.get(Path(path).suffix)
    runs = [
        (name, key)
        for name, choice in known.items()
        for key, field in choice.model_fields.items()
        if get_code_kind(field) == "command"
    ]
    if program is None or not runs:
        return None
    name, key = runs[0]
    written = to_flow_yaml({"name": name, key: [program, path]})
    return f"write {written}; titanrun explain {slot}:{name} shows what it reads and writes"


def find_list_hint(field: FieldInfo, value: Any) -> str | None:
    """Return the list to write instead of a value, or None if it holds the value as it is.

    A text in the place of a command is split into words as by a shell.
    """
    if isinstance(value, dict):
        return find_item_hint(find_item_type(field.annotation), value)
    if isinstance(value, int | float) and find_item_type(field.annotation) is str:
        return f'write ["{format_short_value(value)}"]'
    if not isinstance(value, str) or get_code_kind(field) != "command":
        return None
    try:
        words = shlex.split(value)
    except ValueError:  # a quotation mark without its other half
        return None
    return f"write {to_flow_yaml(words)}" if words else None


def find_item_hint(item: Any, value: Mapping[str, Any]) -> str | None:
    """Return the list of one entry to write instead of a mapping, None if no mapping is an entry.

    Components may be keyed by their names: `{lora: {rank: 8}}`.
    """
    if not isinstance(item, type) or not issubclass(item, Config):
        return None
    written = to_flow_yaml(list_meant_entries(item, value))
    is_short = len(written) <= MAX_ENTRIES and star_out_assigned_secrets(written) == written
    return f"write {written}" if is_short else "write a list: put brackets around the mapping"


def list_meant_entries(item: type[Config], value: Mapping[str, Any]) -> list[Any]:
    """Return the entries that a mapping in the place of their list means."""
    if not value or NAME in value or not is_slot(item):
        return [value] if value else []
    assert issubclass(item, ComponentConfig)
    choices = registry.load_choices(item)
    if set(value) <= set(choices):
        return [
            {NAME: name, **inside} if isinstance(inside, Mapping) else name
            for name, inside in value.items()
        ]
    fitting = (name for name, kind in choices.items() if set(value) <= set(kind.model_fields))
    return [{NAME: next(fitting, "NAME"), **value}]


def find_mapping_hint(
    inner: type[Config], value: Any, *, is_empty: bool, is_required: bool
) -> str | None:
    """Return a hint for a value in the place of a section or a component."""
    if is_empty:
        return "write its keys below it, indented" + ("" if is_required else ", or leave it out")
    if isinstance(value, list):
        one = "keep one of them, and " if repeats_keys(value) else ""
        return f"{one}remove the brackets or dashes: this is one mapping, not a list of them"
    if isinstance(value, bool) and ENABLE in inner.model_fields:
        return f"write {{{ENABLE}: {to_flow_yaml(value)}}}"
    if value is None or is_slot(inner):
        return None
    takers = [
        name
        for name, field in inner.model_fields.items()
        if isinstance(value, str) and value in get_literal_values(field.annotation)
    ]
    if len(takers) == 1:
        return f"write {{{takers[0]}: {value}}}"
    return "write its keys below it, indented, one `key: value` a line"


def repeats_keys(entries: list[Any]) -> bool:
    """Return whether mappings of a list have keys in common: they are not one in several parts."""
    keys = [key for entry in entries if isinstance(entry, dict) for key in entry]
    return len(set(keys)) < len(keys)


def adapt_to_override(
    wording: ErrorMessage, node: Node, path: DataPath, field: FieldInfo | None
) -> ErrorMessage:
    """Return the message with a hint that a shell passes on, for a value on the command line."""
    text, place = node.origin.source.text, format_path(path)
    if node.value is True and text.startswith(DASHES) and wording.code == "wrong-type":
        return replace(wording, hint=f"write {text}=VALUE")
    if wording.expected == "text" and (wording.hint or "").startswith('write "'):
        quoted = str(wording.hint).removeprefix("write ")
        return replace(wording, hint=f"write {shlex.quote(f'{place}={quoted}')}")
    if wording.expected == "a mapping" and wording.hint is None:
        inner: Any = None if field is None else unwrap_annotation(field.annotation)
        is_section = isinstance(inner, type) and issubclass(inner, Config) and not is_slot(inner)
        names = format_word_list(inner.model_fields, conjunction="and") if is_section else ""
        known = f"; keys: {names}" if names else ""
        return replace(wording, hint=f"set its keys: {place}.KEY=VALUE{known}")
    return wording
