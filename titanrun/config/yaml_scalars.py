"""Values of unquoted YAML words: YAML 1.2 core schema without ambiguous numbers.

Numbers that readers disagree on are rejected.
"""

import math
import re
from typing import NamedTuple

from titanrun.config.limits import (
    BITS_PER_DIGIT,
    MAX_DIGITS,
    format_too_many_digits,
    truncate_for_message,
)
from titanrun.config.problems import ProblemCode
from titanrun.config.tree import Scalar

SCALAR_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(
        (f"{sign}{word}" for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), math.inf
    ),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
# text in YAML 1.2, booleans in older readers
BOOLEAN_WORDS = {
    "on": "true",
    "yes": "true",
    "y": "true",
    "off": "false",
    "no": "false",
    "n": "false",
}
NUMBER_STARTS = frozenset("+-.0123456789")
DECIMAL = re.compile(r"[-+]?[0-9]+")
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
# a number that YAML and TOML write in the same way
NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class ScalarRejection(NamedTuple):
    """Reason why a word has no value."""

    code: ProblemCode
    message: str
    hint: str | None = None
    meant: str | None = None
    """The only possible meaning of the word, if there is exactly one."""


def parse_scalar(text: str) -> Scalar | ScalarRejection:
    """Return the value of the plain scalar `text`: null, boolean, number, or else text."""
    if text in SCALAR_WORDS:
        return SCALAR_WORDS[text]
    if text[0] not in NUMBER_STARTS:
        return text
    if DECIMAL.fullmatch(text):
        return parse_decimal(text)
    if OTHER_BASE.fullmatch(text):
        return reject_long_integer(int(text, 0))
    if FLOAT.fullmatch(text):
        return parse_finite_float(text)
    return text


def parse_decimal(text: str) -> int | ScalarRejection:
    """Parse a decimal integer.

    YAML 1.1 and C read `010` as 8, YAML 1.2 as 10; neither is assumed here.
    """
    if len(text) > MAX_DIGITS:
        return ScalarRejection("limit", format_too_many_digits(len(text.lstrip("+-"))))
    if LEADING_ZERO.fullmatch(text):
        return reject_leading_zero(text)
    return int(text)


def reject_leading_zero(text: str) -> ScalarRejection:
    """Reject `010` with hints for each possible meaning."""
    sign = "-" if text.startswith("-") else ""
    digits = text.lstrip("+-0") or "0"
    if digits == "0" or "8" in digits or "9" in digits:
        return ScalarRejection(
            "ambiguous-number",
            f"{truncate_for_message(text)} has a leading zero",
            f"write {truncate_for_message(sign + digits)}",
            sign + digits,
        )
    octal = f"-{int(digits, 8)}" if sign else f"0o{digits}"
    return ScalarRejection(
        "ambiguous-number",
        f"{truncate_for_message(text)} can be decimal or octal",
        f"write {truncate_for_message(sign + digits)}, "
        f"or {truncate_for_message(octal)} if octal is meant",
    )


def reject_long_integer(value: int) -> int | ScalarRejection:
    """Return an integer of any base, or reject it if it is too long to print."""
    if value.bit_length() <= int(MAX_DIGITS * BITS_PER_DIGIT):
        return value
    return ScalarRejection(
        "limit", format_too_many_digits(int(value.bit_length() / BITS_PER_DIGIT))
    )


def parse_finite_float(text: str) -> float | ScalarRejection:
    """Parse a decimal fraction and reject overflow: `1e999` would silently become infinite."""
    if len(text) > MAX_DIGITS:
        return ScalarRejection(
            "limit", f"a number of {len(text):,} characters is longer than {MAX_DIGITS:,}"
        )
    value = float(text)
    if math.isinf(value):
        return ScalarRejection(
            "out-of-range", f"{truncate_for_message(text)} is too large for a float"
        )
    return value
