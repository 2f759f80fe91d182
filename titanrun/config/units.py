"""Values with a unit: token counts ("10B"), sizes ("4GiB"), durations ("2h30m"), steps.

Text or a number is converted to one canonical form. A count of tokens or bytes is a plain integer.
A duration is text with each unit once, the largest first. Parsing the canonical form returns it
unchanged. A field may also accept steps or a duration.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeAlias

from annotated_types import Gt
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

NUMBER = r"[0-9]+(?:\.[0-9]+)?"
TOKEN_UNITS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
BINARY_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE_UNITS = BINARY_UNITS | {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
# units in milliseconds, the largest first
TIME_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
# common spellings of the units of time
TIME_WORDS = re.compile(
    r"(?<=[0-9])(d|h|m|s)(?:ays?|rs?|ours?|ins?|inutes?|ecs?|econds?)(?![a-z])", re.IGNORECASE
)
# a longer number with a unit would not fit 64 bits
LONGEST = 40


def parse_count(text: str, units: Mapping[str, int]) -> int | None:
    """Parse `1.5K` as a whole number, or return None."""
    found = re.fullmatch(rf"({NUMBER})({'|'.join(units)})", text)
    if found is None or len(text) > LONGEST:
        return None
    value = Decimal(found[1]) * units[found[2]]
    return int(value) if value == value.to_integral_value() else None


def parse_milliseconds(text: str) -> int | None:
    """Parse `2h30m` to milliseconds, or return None if it is invalid.

    Each unit may occur once, the largest first.
    """
    parts = "".join(rf"(?:({NUMBER}){unit})?" for unit in TIME_UNITS)
    found = re.fullmatch(parts, text) if text and len(text) <= LONGEST else None
    if found is None:
        return None
    value = sum(
        Decimal(number) * factor
        for number, factor in zip(found.groups(), TIME_UNITS.values(), strict=True)
        if number
    )
    return int(value) if value == int(value) else None


def format_canonical_duration(milliseconds: int) -> str:
    """Format a duration in its canonical form: `1d`, `2h30m`, `1s500ms`."""
    text = ""
    for unit, factor in TIME_UNITS.items():
        count, milliseconds = divmod(milliseconds, factor)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def duration_to_seconds(duration: str) -> float:
    """Convert a duration from a config to seconds."""
    milliseconds = parse_milliseconds(duration)
    assert milliseconds is not None, duration
    return milliseconds / 1000


@dataclass(frozen=True, slots=True)
class UnitKind:
    """Name, syntax and parser of one kind of value with a unit, for use in `Annotated`.

    `parse` returns the canonical value of a text, or None. `accepts_number` says that a bare number
    is also a value.
    """

    description: str
    example: str
    units_hint: str
    pattern: str
    parse: Callable[[str], Any]
    accepts_number: bool = True
    is_text: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        # the plain type validates numbers, and the counts parsed from text
        inner = (
            core_schema.int_schema(gt=0, strict=True)
            if self.is_text and self.accepts_number
            else handler(source)
        )
        return core_schema.no_info_wrap_validator_function(self.validate_value, inner)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        text = {"type": "string", "pattern": self.pattern}
        return {"anyOf": [handler(schema["schema"]), text]} if self.accepts_number else text

    def validate_value(self, given: Any, validate: Callable[[Any], Any]) -> Any:
        """Return the canonical value of a recipe value."""
        if not isinstance(given, str):
            if (
                self.accepts_number
                and isinstance(given, int | float)
                and not isinstance(given, bool)
            ):
                return validate(given)
            raise self.build_error(None)
        found = self.parse(given)
        if found is None:
            raise self.build_error(self.suggest_spelling(given))
        return found if self.is_text else validate(found)

    def suggest_spelling(self, text: str) -> str | None:
        """Return the text without spaces and with correctly spelled units, if that is readable."""
        if self.accepts_number and re.fullmatch(r"[0-9]+", text.strip()):
            return text.strip()
        close = re.sub(r"\s+", "", text)
        sized = re.sub(
            r"(?<=[0-9])([kmgt])i?b?$",
            lambda unit: f"{unit[1].upper()}iB",
            close,
            flags=re.IGNORECASE,
        )
        timed = TIME_WORDS.sub(lambda unit: unit[1].lower(), close)
        forms = (close, close.upper(), close.lower(), sized, timed)
        return next((form for form in forms if self.parse(form) is not None), None)

    def build_error(self, meant: str | None) -> PydanticCustomError:
        """Build the error of a value that is not of this kind."""
        context = {"words": self.description, "units": self.units_hint, "meant": meant}
        return PydanticCustomError("unit", "expected {words}", context)


def parse_positive_duration(text: str) -> str | None:
    """Parse a duration above zero to its canonical form, or return None."""
    found = parse_milliseconds(text)
    return format_canonical_duration(found) if found else None


TIME_PATTERN = "^(?=.)" + "".join(rf"({NUMBER}{unit})?" for unit in TIME_UNITS) + "$"
TOKENS = UnitKind(
    "a number of tokens, such as 500M or 10B",
    "10B",
    "units are K, M, B and T, in steps of 1000",
    rf"^{NUMBER}[KMBT]$",
    lambda text: parse_count(text, TOKEN_UNITS),
)
SIZE = UnitKind(
    "a size, such as 512MiB or 4GiB",
    "4GiB",
    "units are B, KiB, MiB, GiB and TiB, or KB, MB, GB and TB in steps of 1000",
    rf"^{NUMBER}([KMGT]i?)?B$",
    lambda text: parse_count(text, SIZE_UNITS),
)
DURATION = UnitKind(
    "a duration, such as 45s, 10m or 2h30m",
    "10m",
    "units are d, h, m, s and ms, the largest first",
    TIME_PATTERN,
    parse_positive_duration,
    accepts_number=False,
    is_text=True,
)
STEPS_OR_DURATION = UnitKind(
    "a number of steps, or a duration such as 10m or 2h30m",
    "10m",
    "units of a duration are d, h, m, s and ms, the largest first",
    TIME_PATTERN,
    parse_positive_duration,
    is_text=True,
)

TokenCount: TypeAlias = Annotated[int, Gt(0), TOKENS]
ByteSize: TypeAlias = Annotated[int, Gt(0), SIZE]
Duration: TypeAlias = Annotated[str, DURATION]
StepsOrDuration: TypeAlias = Annotated[int | str, STEPS_OR_DURATION]
