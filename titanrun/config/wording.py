"""Pydantic's errors about one value in the words of someone who writes recipes."""

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from titanrun.config.problems import Code
from titanrun.config.render import shorten
from titanrun.config.scalars import BOOLEAN_WORDS
from titanrun.config.suggest import CURLY_QUOTES, closest, is_other_number, is_respelling, listing

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
SECRET_MESSAGE = "a secret is not written into a recipe; what stands here is not shown"
SECRET_HELP = "write ${env:NAME}, and set that environment variable where the run starts"
SIZE_WORDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMbBgG])(?:i?[bB])?")
DECIMAL_COMMA = re.compile(r"[-+]?0,[0-9]{1,17}")
PERCENT = re.compile(r"([0-9]{1,17}(?:\.[0-9]{1,17})?) ?%")
POWER_OF_TEN = re.compile(
    r"(?:([0-9]{1,17}(?:\.[0-9]{1,17})?) ?[*x\u00d7] ?)?10 ?(?:\^|\*\*) ?\(?([-+]?[0-9]{1,9})\)?"
)
SHORT_DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "full": "float32",
}
SIZE_FACTORS = {"k": (10**3, 2**10), "m": (10**6, 2**20), "b": (10**9, 2**30), "g": (10**9, 2**30)}


@dataclass(frozen=True, slots=True)
class Wording:
    """What is wrong with one value, and what to write instead."""

    code: Code
    message: str
    help: str | None = None
    suggestion: str | None = None
    expected: str | None = None
    certain: bool = False
    """Whether `suggestion` is what was meant, so that a machine may write it."""


def word_value_error(kind: str, context: Mapping[str, Any], value: Any) -> Wording:
    """The wording of pydantic's error `kind` about `value`; `value` is NO_VALUE for a key with nothing behind it."""
    if kind == "secret":
        return Wording("wrong-type", SECRET_MESSAGE, SECRET_HELP, expected="${env:NAME}")
    if kind == "unit":
        return word_unit(context, value)
    if kind == "or_auto":
        return word_auto_or(word_value_error(context["inner"], context["inner_ctx"], value), value)
    if value is NO_VALUE or value is None:
        return word_nothing(kind, context, value)
    table: dict[str, Callable[[Mapping[str, Any], Any], Wording]] = {
        "literal_error": word_literal,
        "unknown_name": word_unknown_name,
        "finite_number": lambda _context, got: Wording(
            "out-of-range", f"{got} is not a finite number"
        ),
        "string_too_short": lambda _context, _got: Wording("out-of-range", "the text is empty"),
        "too_short": lambda _context, _got: Wording("out-of-range", "the list is empty"),
        "component_name_missing": lambda got, _value: Wording(
            "missing-key", f"{a(got['slot'])} needs a name", name_help(got["names"])
        ),
    }
    if kind in table:
        return table[kind](context, value)
    if kind in RANGES:
        sign, allowed, key = RANGES[kind]
        bound = number(context[key])
        return Wording(
            "out-of-range", f"{shorten(value)} is {sign} {bound}", expected=f"{allowed} {bound}"
        )
    expected = EXPECTED.get(kind, kind.replace("_", " "))
    worded = word_wrong_type(expected, value)
    return (
        replace(worded, help=context["help"])
        if worded.help is None and "help" in context
        else worded
    )


def word_auto_or(inner: Wording, value: str) -> Wording:
    """The wording for the type behind `auto`-or-something, with `auto` added."""
    if inner.expected is None or (inner.help is not None and inner.code != "unknown-name"):
        return inner
    expected = f"{inner.expected} or auto"
    suggestion = inner.suggestion or closest(value, [AUTO])
    help = f"did you mean '{suggestion}'?" if suggestion else inner.help
    certain = inner.certain or (suggestion == AUTO and is_respelling(value, AUTO, [AUTO]))
    return Wording(
        inner.code,
        inner.message.replace(inner.expected, expected, 1),
        help,
        suggestion,
        expected,
        certain,
    )


# what is wrong, what is allowed, and where the bound is in pydantic's context
RANGES = {
    "greater_than": ("not above", "above", "gt"),
    "greater_than_equal": ("below", "at least", "ge"),
    "less_than": ("not below", "below", "lt"),
    "less_than_equal": ("above", "at most", "le"),
    "multiple_of": ("not a multiple of", "a multiple of", "multiple_of"),
}


def word_wrong_type(expected: str, value: Any) -> Wording:
    """A value of another type; text that looks like what was meant gets its fix."""
    message = f"expected {expected}, got {named(value)}"
    if isinstance(value, str):
        if expected == "true or false":
            meant = BOOLEAN_WORDS.get(value.lower()) or (
                value.lower() if value.lower() in ("true", "false") else None
            )
            return Wording(
                "wrong-type",
                message,
                f"write {meant}" if meant else None,
                meant,
                expected,
                certain=meant is not None,
            )
        if "number" in expected:
            return word_text_for_number(expected, value, message)
    if expected == "true or false" and value in (0, 1):
        meant = "true" if value else "false"
        return Wording("wrong-type", message, f"write {meant}", meant, expected, certain=True)
    if expected == "text" and isinstance(value, bool | int | float):
        return Wording(
            "wrong-type", message, f'write "{shorten(value)}"', expected=expected, certain=True
        )
    if isinstance(value, list) and len(value) == 1 and "number" in expected:
        return Wording("wrong-type", message, f"write {shorten(value[0])}", expected=expected)
    if expected == "a list" and not isinstance(value, dict):
        return Wording("wrong-type", message, f"write [{value}]", expected=expected)
    return Wording("wrong-type", message, expected=expected)


def word_text_for_number(expected: str, value: str, message: str) -> Wording:
    """Text where a number belongs: 1_000, 1:30:00, 4k, "8"."""
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(\.[0-9_]+)?([eE][-+]?[0-9]+)?", value) and "_" in value:
        plain = value.replace("_", "")
        wrong = f"{shorten(value)} is text: numbers have no underscores"
        return Wording("ambiguous-number", wrong, f"write {plain}", plain, expected, certain=True)
    if re.fullmatch(r"[0-9]+(:[0-5]?[0-9])+", value):
        parts = [int(part) for part in value.split(":")]
        total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
        wrong = f"{shorten(value)} is text: numbers have no colons"
        return Wording(
            "ambiguous-number", wrong, f"write {total} if sixties are meant", None, expected
        )
    size = SIZE_WORDS.fullmatch(value)
    if size:
        offers = [
            number(float(size[1]) * factor) for factor in reversed(SIZE_FACTORS[size[2].lower()])
        ]
        wrong = f"{shorten(value)} has a unit, and this field has none"
        return Wording("ambiguous-number", wrong, f"write {listing(offers)}", None, expected)
    other = other_notation(value)
    if other:
        return Wording("wrong-type", message, f"write {other}", None, expected)
    plain = unicodedata.normalize("NFKC", value.strip(CURLY_QUOTES)).strip().replace("_", "")
    try:
        finite = math.isfinite(float(plain))
    except ValueError:
        return Wording("wrong-type", message, expected=expected)
    if not value.strip(CURLY_QUOTES).isascii():
        return Wording(
            "ambiguous-number",
            f"{shorten(value)} is text: numbers have ASCII digits",
            f"write {plain}",
            plain,
            expected,
        )
    if not finite:  # nan, inf and infinity are text in YAML
        return Wording(
            "out-of-range", f"{shorten(value)} is not a finite number", expected=expected
        )
    certain = "whole" not in expected or float(plain).is_integer()
    return Wording(
        "wrong-type",
        f"{message} in quotes",
        f"write {plain} without quotes",
        plain,
        expected,
        certain,
    )


def other_notation(text: str) -> str | None:
    """A number written as on paper: 0,001 or 3*10^-4 or 10%."""
    if DECIMAL_COMMA.fullmatch(text):
        return text.replace(",", ".")
    if percent := PERCENT.fullmatch(text):
        return number(float(percent[1]) / 100)
    power = POWER_OF_TEN.fullmatch(text)
    return f"{power[1] or 1}e{int(power[2])}" if power else None


def word_unit(context: Mapping[str, Any], value: Any) -> Wording:
    """A value that has no unit, or one that does not fit, where a value with a unit belongs."""
    words, meant = context["words"], context["meant"]
    got = "nothing" if value is NO_VALUE else named(value)
    if meant is None:
        return Wording(
            "wrong-type", f"expected {words}, got {got}", context["units"], expected=words
        )
    help = f"write {meant} without quotes" if meant.isdigit() else f"did you mean '{meant}'?"
    certain = meant == "".join(str(value).split())
    return Wording("wrong-type", f"expected {words}, got {got}", help, meant, words, certain)


def word_nothing(kind: str, context: Mapping[str, Any], value: Any) -> Wording:
    """null, or a key with nothing behind it, where a value is needed."""
    if kind == "literal_error":
        expected = expected_words(context)
    elif kind == "component_name_missing":
        return Wording(
            "missing-key", f"{a(context['slot'])} needs a name", name_help(context["names"])
        )
    else:
        expected = EXPECTED.get(kind, "a value")
    got = "nothing" if value is NO_VALUE else "null"
    return Wording("wrong-type", f"expected {expected}, got {got}", expected=expected)


def word_literal(context: Mapping[str, Any], value: Any) -> Wording:
    """A value outside a short list of allowed ones."""
    choices = re.findall(r"'([^']*)'", context["expected"])
    if (
        isinstance(value, str)
        and not choices
        and value in expected_words(context).replace(" or ", ", ").split(", ")
    ):
        message = f"expected {expected_words(context)}, got text {shorten(value)} in quotes"
        return Wording(
            "wrong-type",
            message,
            f"write {value} without quotes",
            value,
            expected_words(context),
            certain=True,
        )
    if not isinstance(value, str) or not choices:
        return Wording(
            "wrong-type",
            f"expected {expected_words(context)}, got {named(value)}",
            expected=expected_words(context),
        )
    short = SHORT_DTYPES.get(value.lower())
    suggestion = short if short in choices else closest(value, choices)
    help = f"did you mean '{suggestion}'?" if suggestion else None
    certain = suggestion is not None and (
        suggestion == short or is_respelling(value, suggestion, choices)
    )
    message = f"unknown value {shorten(value)}; expected {listing(choices)}"
    return Wording("unknown-name", message, help, suggestion, listing(choices), certain)


def word_unknown_name(context: Mapping[str, Any], value: Any) -> Wording:
    """A component name that no choice of the slot has."""
    suggestion = closest(
        context["name"],
        [name for name in context["names"] if not is_other_number(context["name"], name)],
    )
    help = f"did you mean '{suggestion}'?" if suggestion else name_help(context["names"])
    message = f"unknown {singular(context['slot'])} {shorten(context['name'])}"
    certain = suggestion is not None and is_respelling(
        context["name"], suggestion, context["names"]
    )
    return Wording("unknown-name", message, help, suggestion, listing(context["names"]), certain)


def expected_words(context: Mapping[str, Any]) -> str:
    """Pydantic's list of literals in our punctuation."""
    return str(context["expected"]).replace("'", "")


def name_help(names: list[str]) -> str:
    """Which names there are."""
    return f"known names: {listing(names)}" if names else "no name is registered here yet"


def singular(slot: str) -> str:
    """A slot's name as one of its components is called: `converters` -> `converter`."""
    return slot.replace("_", " ").removesuffix("s") if slot != "loss" else slot


def a(slot: str) -> str:
    """`a tokenizer`, `an optimizer`."""
    word = singular(slot)
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def named(value: Any) -> str:
    """A value with its kind: `text 'abc'`, `the number 3`, `a list`."""
    if isinstance(value, bool) or value is None:
        return shorten(value)
    if isinstance(value, str):
        return f"text {shorten(value)}"
    if isinstance(value, int | float):
        return f"the number {shorten(value)}"
    return "a list" if isinstance(value, list | tuple) else "a mapping"


def number(value: float) -> str:
    """A bound as people write it: 1, not 1.0."""
    return str(int(value)) if float(value).is_integer() else str(value)
