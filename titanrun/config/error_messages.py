"""Pydantic's errors about one value, in the words of recipe authors."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Any

from titanrun.config.diagnostics import format_short_value
from titanrun.config.number_messages import (
    ErrorMessage,
    describe_text_for_number,
    format_bound_number,
)
from titanrun.config.registry import find_slots_offering
from titanrun.config.suggest import (
    find_closest,
    format_word_list,
    is_certain_spelling,
    is_other_number,
    is_respelling,
    remove_slot_word,
)
from titanrun.config.yaml_scalars import BOOLEAN_WORDS

NO_VALUE = object()
AUTO = "auto"
EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int64": "a whole number of at most 64 bits",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "none_required": "null",
    "component_type": "a name, or a mapping with name",
    "component_name_type": "a name",
}
SECRET_MESSAGE = "a recipe must not contain a secret; the value is not shown"
SECRET_HELP = "write ${env:NAME} and set that environment variable where the run starts"
SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "full": "float32",
}


def describe_value_error(kind: str, context: Mapping[str, Any], value: Any) -> ErrorMessage:
    """Return the message for pydantic's error `kind` about `value`.

    `value` is NO_VALUE for a key without a value.
    """
    if kind == "secret":
        return ErrorMessage("wrong-type", SECRET_MESSAGE, SECRET_HELP, expected="${env:NAME}")
    if kind == "unit":
        return describe_unit_error(context, value)
    if kind == "or_auto":
        return describe_auto_or_error(
            describe_value_error(context["inner"], context["inner_ctx"], value), value
        )
    if value is NO_VALUE or value is None:
        return describe_missing_value(kind, context, value)
    table: dict[str, Callable[[Mapping[str, Any], Any], ErrorMessage]] = {
        "literal_error": describe_literal_error,
        "unknown_name": describe_unknown_name,
        "finite_number": lambda _context, got: ErrorMessage(
            "out-of-range", f"{got} is not a finite number"
        ),
        "string_too_short": lambda _context, _got: ErrorMessage(
            "out-of-range", "the text is empty"
        ),
        "too_short": lambda _context, _got: ErrorMessage("out-of-range", "the list is empty"),
        "component_name_missing": lambda got, _value: ErrorMessage(
            "missing-key",
            f"missing required key 'name' in section '{got['slot']}'",
            format_known_names(got["names"]),
        ),
    }
    if kind in table:
        return table[kind](context, value)
    if kind in RANGE_ERRORS:
        sign, allowed, key = RANGE_ERRORS[kind]
        bound = format_bound_number(context[key])
        shown = format_short_value(value)
        # an excluded bound itself: "0 is not above 0" is no news
        words = f"must be {allowed} {bound}, but is" if shown == bound else f"is {sign} {bound}"
        message = f"{words} {shown}" if shown == bound else f"{shown} {words}"
        return ErrorMessage("out-of-range", message, expected=f"{allowed} {bound}")
    expected = EXPECTED.get(kind, kind.replace("_", " "))
    worded = describe_wrong_type(expected, value)
    return (
        replace(worded, hint=context["help"])
        if worded.hint is None and "help" in context
        else worded
    )


def describe_auto_or_error(inner: ErrorMessage, value: str) -> ErrorMessage:
    """Return the message of the inner type of `auto`-or-something, with `auto` added."""
    if inner.expected is None or (inner.hint is not None and inner.code != "unknown-name"):
        return inner
    expected = f"{', '.join(inner.expected.rsplit(' or ', 1))} or auto"
    suggestion = inner.suggestion or find_closest(value, [AUTO])
    hint = f"did you mean '{suggestion}'?" if suggestion else inner.hint
    certain = inner.is_certain or (suggestion == AUTO and is_certain_spelling(value, AUTO, [AUTO]))
    return ErrorMessage(
        inner.code,
        inner.message.replace(inner.expected, expected, 1),
        hint,
        suggestion,
        expected,
        certain,
    )


# violated relation, allowed relation, and key of the bound in pydantic's context
RANGE_ERRORS = {
    "greater_than": ("not above", "above", "gt"),
    "greater_than_equal": ("below", "at least", "ge"),
    "less_than": ("not below", "below", "lt"),
    "less_than_equal": ("above", "at most", "le"),
    "multiple_of": ("not a multiple of", "a multiple of", "multiple_of"),
}


def describe_wrong_type(expected: str, value: Any) -> ErrorMessage:
    """Describe a value of a wrong type. Text that looks like the right type gets a fix."""
    message = f"expected {expected}, got {format_value_with_kind(value)}"
    if isinstance(value, str):
        if expected == "true or false":
            meant = BOOLEAN_WORDS.get(value.lower()) or (
                value.lower() if value.lower() in ("true", "false") else None
            )
            return ErrorMessage(
                "wrong-type",
                message,
                f"write {meant}" if meant else None,
                meant,
                expected,
                is_certain=meant is not None,
            )
        if "number" in expected:
            return describe_text_for_number(expected, value, message)
    if expected == "true or false" and value in (0, 1):
        meant = "true" if value else "false"
        return ErrorMessage(
            "wrong-type", message, f"write {meant}", meant, expected, is_certain=True
        )
    if expected == "text" and isinstance(value, bool | int | float):
        return ErrorMessage(
            "wrong-type",
            message,
            f'write "{format_short_value(value)}"',
            expected=expected,
            is_certain=True,
        )
    if expected.startswith("a whole number") and isinstance(value, float) and value % 1 > 0:
        near = [str(number) for number in (floor(value), ceil(value)) if number > 0]
        hint = f"write {' or '.join(near)}" if near else None
        return ErrorMessage("wrong-type", message, hint, expected=expected)
    if "number" in expected and is_single_number(value):
        return ErrorMessage(
            "wrong-type", message, f"write {format_short_value(value[0])}", expected=expected
        )
    if expected == "a list" and not isinstance(value, dict):
        item = value if isinstance(value, str) else format_short_value(value)
        return ErrorMessage("wrong-type", message, f"write [{item}]", expected=expected)
    return ErrorMessage("wrong-type", message, expected=expected)


def describe_unit_error(context: Mapping[str, Any], value: Any) -> ErrorMessage:
    """Describe a value with a missing or unsuitable unit."""
    words, meant = context["words"], context["meant"]
    got = "nothing" if value is NO_VALUE else format_value_with_kind(value)
    if meant is None:
        units = None if isinstance(value, bool) else context["units"]
        return ErrorMessage("wrong-type", f"expected {words}, got {got}", units, expected=words)
    hint = f"write {meant} without quotes" if meant.isdigit() else f"did you mean '{meant}'?"
    certain = meant == "".join(str(value).split())
    return ErrorMessage("wrong-type", f"expected {words}, got {got}", hint, meant, words, certain)


def describe_missing_value(kind: str, context: Mapping[str, Any], value: Any) -> ErrorMessage:
    """Describe null, or a key without a value, where a value is required."""
    if kind == "literal_error":
        expected = format_expected_literals(context)
    elif kind == "component_name_missing":
        return ErrorMessage(
            "missing-key",
            f"missing required key 'name' in section '{context['slot']}'",
            format_known_names(context["names"]),
        )
    else:
        expected = EXPECTED.get(kind, "a value")
    got = "nothing" if value is NO_VALUE else "null"
    return ErrorMessage("wrong-type", f"expected {expected}, got {got}", expected=expected)


def is_single_number(value: Any) -> bool:
    """Return whether a value is a list of one number."""
    return isinstance(value, list) and len(value) == 1 and type(value[0]) in (int, float)


def describe_literal_error(context: Mapping[str, Any], value: Any) -> ErrorMessage:
    """Describe a value that is not one of the allowed literals."""
    choices = re.findall(r"'([^']*)'", context["expected"])
    if (
        isinstance(value, str)
        and not choices
        and value in format_expected_literals(context).replace(" or ", ", ").split(", ")
    ):
        message = (
            f"expected {format_expected_literals(context)}, "
            f"got text {format_short_value(value)} in quotes"
        )
        return ErrorMessage(
            "wrong-type",
            message,
            f"write {value} without quotes",
            value,
            format_expected_literals(context),
            is_certain=True,
        )
    if not isinstance(value, str) or not choices:
        return ErrorMessage(
            "wrong-type",
            f"expected {format_expected_literals(context)}, got {format_value_with_kind(value)}",
            expected=format_expected_literals(context),
        )
    short = SHORT_DTYPES.get(value.lower())
    suggestion = short if short in choices else find_closest(value, choices)
    slots = [] if suggestion else find_slots_offering(value)
    hint = f"did you mean '{suggestion}'?" if suggestion else None
    if slots:
        is_list = slots[0] != singularize_slot(slots[0])
        written = f"[{value}]" if is_list else value
        hint = f"'{value}' is {add_article(slots[0])}: set {slots[0]}: {written}"
    certain = suggestion is not None and (
        suggestion == short or is_certain_spelling(value, suggestion, choices)
    )
    message = f"unknown value {format_short_value(value)}; expected {format_word_list(choices)}"
    return ErrorMessage(
        "unknown-name", message, hint, suggestion, format_word_list(choices), certain
    )


def describe_unknown_name(context: Mapping[str, Any], value: Any) -> ErrorMessage:
    """Describe a component name that no choice of the slot has."""
    name, names = context["name"], context["names"]
    short = remove_slot_word(name, context["slot"])
    suggestion = next((known for known in names if is_respelling(short, known, names)), None)
    suggestion = suggestion or find_closest(
        name, [known for known in names if not is_other_number(name, known)]
    )
    hint = f"did you mean '{suggestion}'?" if suggestion else format_known_names(names)
    message = f"unknown {singularize_slot(context['slot'])} {format_short_value(name)}"
    certain = suggestion is not None and any(
        is_certain_spelling(word, suggestion, names) for word in (name, short)
    )
    return ErrorMessage("unknown-name", message, hint, suggestion, format_word_list(names), certain)


def format_expected_literals(context: Mapping[str, Any]) -> str:
    """Return pydantic's list of literals in our punctuation."""
    return str(context["expected"]).replace("'", "")


def format_known_names(names: list[str]) -> str:
    """Return a hint that lists all known names: none of them is the likely one."""
    return (
        f"known names: {format_word_list(names, max_words=len(names))}"
        if names
        else "no names are registered for this slot yet"
    )


def singularize_slot(slot: str) -> str:
    """Return the name of one component of a slot: `converters` -> `converter`."""
    return slot.replace("_", " ").removesuffix("s") if slot != "loss" else slot


def add_article(slot: str) -> str:
    """Return a slot's component with its article: `a tokenizer`, `an optimizer`."""
    word = singularize_slot(slot)
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def format_value_with_kind(value: Any) -> str:
    """Return a value with its kind: `text 'abc'`, `the number 3`, `a list`."""
    if isinstance(value, bool) or value is None:
        return format_short_value(value)
    if isinstance(value, str):
        return f"text {format_short_value(value)}"
    if isinstance(value, int | float):
        return f"the number {format_short_value(value)}"
    return "a list" if isinstance(value, list | tuple) else "a mapping"
