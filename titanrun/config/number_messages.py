"""Text in the place of a number, in the words of recipe authors."""

import math
import re
import unicodedata
from dataclasses import dataclass

from titanrun.config.diagnostics import format_short_value
from titanrun.config.problems import ProblemCode
from titanrun.config.suggest import CURLY_QUOTES, format_word_list
from titanrun.config.yaml_scalars import NUMBER, OTHER_BASE, ScalarRejection, parse_scalar

SIZE_WORDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMbBgG])(?:i?[bB])?")
DECIMAL_COMMA = re.compile(r"[-+]?0,[0-9]{1,17}")
PERCENT = re.compile(r"([0-9]{1,17}(?:\.[0-9]{1,17})?) ?%")
TEN_POWER_NOTATION = re.compile(
    r"(?:([0-9]{1,17}(?:\.[0-9]{1,17})?) ?[*x\u00d7] ?)?10 ?(?:\^|\*\*) ?\(?([-+]?[0-9]{1,9})\)?"
)
COUNTED = "steps?|epochs?|tokens?|sequences?|documents?|records?|samples?|layers?|ranks?|gpus?"
NUMBER_WITH_WORD = re.compile(rf"([0-9]{{1,17}}) +({COUNTED})", re.IGNORECASE)
NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
)
SIZE_FACTORS = {"k": (10**3, 2**10), "m": (10**6, 2**20), "b": (10**9, 2**30), "g": (10**9, 2**30)}


@dataclass(frozen=True, slots=True)
class ErrorMessage:
    """Message about one wrong value, and the text to write instead."""

    code: ProblemCode
    message: str
    hint: str | None = None
    suggestion: str | None = None
    expected: str | None = None
    is_certain: bool = False
    """Whether `suggestion` is certain, so that it may be applied automatically."""


def describe_text_for_number(expected: str, value: str, message: str) -> ErrorMessage:
    """Describe text in the place of a number: 1_000, 1:30:00, 4k, "8"."""
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(\.[0-9_]+)?([eE][-+]?[0-9]+)?", value) and "_" in value:
        plain = value.replace("_", "")
        wrong = f"{format_short_value(value)} is text: numbers have no underscores"
        rejection = parse_scalar(plain)
        if isinstance(rejection, ScalarRejection):  # 0_10
            return ErrorMessage("ambiguous-number", wrong, rejection.hint, None, expected)
        return ErrorMessage(
            "ambiguous-number", wrong, f"write {plain}", plain, expected, is_certain=True
        )
    if re.fullmatch(r"[0-9]+(:[0-5]?[0-9])+", value):
        parts = [int(part) for part in value.split(":")]
        total = sum(part * 60**power for power, part in enumerate(reversed(parts)))
        wrong = f"{format_short_value(value)} is text: numbers have no colons"
        return ErrorMessage(
            "ambiguous-number", wrong, f"write {total} if sixties are meant", None, expected
        )
    size = SIZE_WORDS.fullmatch(value)
    if size:
        offers = [
            format_bound_number(float(size[1]) * factor)
            for factor in reversed(SIZE_FACTORS[size[2].lower()])
        ]
        wrong = f"{format_short_value(value)} has a unit, but this field takes none"
        return ErrorMessage(
            "ambiguous-number", wrong, f"write {format_word_list(offers)}", None, expected
        )
    other = convert_other_notation(value)
    if other and ("whole" not in expected or float(other).is_integer()):
        return ErrorMessage("wrong-type", message, f"write {other}", None, expected)
    if OTHER_BASE.fullmatch(value.strip()):
        plain = value.strip()
        hint = f"write {plain} without quotes"
        return ErrorMessage(
            "wrong-type", f"{message} in quotes", hint, plain, expected, is_certain=True
        )
    plain = unicodedata.normalize("NFKC", value.strip(CURLY_QUOTES)).strip().replace("_", "")
    try:
        is_finite = math.isfinite(float(plain))
    except ValueError:
        return ErrorMessage("wrong-type", message, expected=expected)
    return describe_quoted_number(expected, value, plain, message, is_finite=is_finite)


def describe_quoted_number(
    expected: str, value: str, plain: str, message: str, *, is_finite: bool
) -> ErrorMessage:
    """Describe text that is the number `plain` apart from quotes or Unicode digits."""
    if not value.strip(CURLY_QUOTES).isascii():
        return ErrorMessage(
            "ambiguous-number",
            f"{format_short_value(value)} is text: numbers have ASCII digits",
            f"write {plain}",
            plain,
            expected,
        )
    if not is_finite:  # YAML reads nan, inf and infinity as text
        return ErrorMessage(
            "out-of-range", f"{format_short_value(value)} is not a finite number", expected=expected
        )
    read = parse_scalar(plain)
    if isinstance(read, ScalarRejection):  # "010"
        return ErrorMessage(read.code, f"{message} in quotes", read.hint, None, expected)
    # TOML has no .5, and no 5.
    meant = plain if NUMBER.fullmatch(plain) else repr(read)
    certain = "whole" not in expected or float(plain).is_integer()
    return ErrorMessage(
        "wrong-type",
        f"{message} in quotes",
        f"write {meant} without quotes",
        meant,
        expected,
        certain,
    )


def convert_other_notation(text: str) -> str | None:
    """Convert a number in handwritten notation (0,001, 3*10^-4, 10%, 3 steps, two), or None."""
    if with_word := NUMBER_WITH_WORD.fullmatch(text):
        return with_word[1]
    if text.lower() in NUMBER_WORDS:
        return str(NUMBER_WORDS.index(text.lower()))
    if DECIMAL_COMMA.fullmatch(text):
        return text.replace(",", ".")
    if percent := PERCENT.fullmatch(text):
        return format_bound_number(float(percent[1]) / 100)
    power = TEN_POWER_NOTATION.fullmatch(text)
    return f"{power[1] or 1}e{int(power[2])}" if power else None


def format_bound_number(value: float) -> str:
    """Format a bound: 1, not 1.0."""
    return str(int(value)) if float(value).is_integer() else str(value)
