"""What an unquoted YAML word means: the YAML 1.2 core schema, without the numbers that readers disagree on."""

import math
import re
from typing import NamedTuple

from titanrun.config.limits import BITS_PER_DIGIT, MAX_DIGITS, cut, too_long
from titanrun.config.problems import Code
from titanrun.config.tree import Scalar

WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(
        (f"{sign}{word}" for sign in ("", "+") for word in (".inf", ".Inf", ".INF")), math.inf
    ),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
# text to YAML 1.2, booleans to older readers
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
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


class Refusal(NamedTuple):
    """Why a word has no value."""

    code: Code
    message: str
    help: str | None = None
    meant: str | None = None
    """The one thing that the word can mean, where there is but one."""


def resolve(text: str) -> Scalar | Refusal:
    """The value of the plain scalar `text`; what is no null, boolean or number stays text."""
    if text in WORDS:
        return WORDS[text]
    if text[0] not in NUMBER_STARTS:
        return text
    if DECIMAL.fullmatch(text):
        return decimal(text)
    if OTHER_BASE.fullmatch(text):
        return fits_printing(int(text, 0))
    if FLOAT.fullmatch(text):
        return finite(text)
    return text


def decimal(text: str) -> int | Refusal:
    """A decimal integer. YAML 1.1 and C read `010` as 8, YAML 1.2 as 10: neither is assumed here."""
    if len(text) > MAX_DIGITS:
        return Refusal("limit", too_long(len(text.lstrip("+-"))))
    if LEADING_ZERO.fullmatch(text):
        return leading_zero(text)
    return int(text)


def leading_zero(text: str) -> Refusal:
    """The refusal of `010`, with how to write each thing it could mean."""
    sign = "-" if text.startswith("-") else ""
    digits = text.lstrip("+-0") or "0"
    if digits == "0" or "8" in digits or "9" in digits:
        return Refusal(
            "ambiguous-number",
            f"{cut(text)} has a leading zero",
            f"write {cut(sign + digits)}",
            sign + digits,
        )
    octal = f"-{int(digits, 8)}" if sign else f"0o{digits}"
    return Refusal(
        "ambiguous-number",
        f"{cut(text)} can be decimal or octal",
        f"write {cut(sign + digits)}, or {cut(octal)} if octal is meant",
    )


def fits_printing(value: int) -> int | Refusal:
    """An integer of any base, if it is no longer than what can be printed."""
    if value.bit_length() <= int(MAX_DIGITS * BITS_PER_DIGIT):
        return value
    return Refusal("limit", too_long(int(value.bit_length() / BITS_PER_DIGIT)))


def finite(text: str) -> float | Refusal:
    """A decimal fraction; `1e999` would silently become infinite."""
    if len(text) > MAX_DIGITS:
        return Refusal("limit", f"a number of {len(text)} characters is longer than {MAX_DIGITS}")
    value = float(text)
    if math.isinf(value):
        return Refusal("out-of-range", f"{cut(text)} is too large for a float")
    return value
