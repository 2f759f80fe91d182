"""Filters of sweep points: conditions on their values and on other values of the recipe."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from titanrun.config.problems import Origin, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_value_text
from titanrun.config.tree import to_plain_data
from titanrun.config.units import SIZE_UNITS, TOKEN_UNITS, parse_count, parse_milliseconds

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
}
CONDITION = re.compile(r"\s*([\w.]+)\s*(<=|>=|==|!=|<|>)\s*(\S.*?)\s*")
PATH = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")


@dataclass(frozen=True, slots=True)
class PointFilter:
    """Condition such as `optimizer.lr < 0.01` or `model.n_kv_heads <= model.n_heads`.

    The right side is a value or a path.
    """

    text: str
    path: str
    operator: str
    right_side: object
    is_path: bool
    origin: Origin

    def holds(self, get_value: Callable[[str], object]) -> bool:
        """Return whether a point satisfies the condition. `get_value` returns the value at a path.

        Raises ProblemsFound if the two values have no order.
        """
        left = get_value(self.path)
        right = get_value(str(self.right_side)) if self.is_path else self.right_side
        numbers = parse_unit(left), parse_unit(right)
        if not any(isinstance(number, str) for number in numbers):
            left, right = numbers
        try:
            return bool(OPERATORS[self.operator](left, right))
        except TypeError:
            raise problem_error(
                "conflict",
                f"{left!r} and {right!r} of '{self.text}' have no order",
                origin=self.origin,
            ) from None


def parse_unit(value: object) -> object:
    """Convert a count such as `10B`, a size such as `4GiB` or a duration to a number.

    Return other values as they are.
    """
    if not isinstance(value, str):
        return value
    numbers = (
        *(parse_count(value, units) for units in (TOKEN_UNITS, SIZE_UNITS)),
        parse_milliseconds(value),
    )
    return next((number for number in numbers if number is not None), value)


def parse_filter(text: str, origin: Origin) -> PointFilter:
    """Parse a condition of the sweep file. Raise ProblemsFound if it is invalid."""
    found = CONDITION.fullmatch(text)
    if not found:
        hint = (
            "write a path, one of <= >= == != < >, and a value or another path: optimizer.lr < 0.01"
        )
        raise problem_error("usage", f"'{text}' is not a condition", origin=origin, hint=hint)
    path, operator, right = found.groups()
    if PATH.fullmatch(right):
        return PointFilter(text, path, operator, right, True, origin)
    try:
        return PointFilter(
            text,
            path,
            operator,
            to_plain_data(read_value_text(SourceText(text, right, "override"))),
            False,
            origin,
        )
    except ProblemsFound:
        raise problem_error("usage", f"'{right}' is not a value", origin=origin) from None


def build_value_lookup(
    sources: Sequence[Mapping[str, object]], origin: Origin
) -> Callable[[str], object]:
    """Return a function that looks up a path in plain data of recipes, in order.

    A null gives way to a value of a later one: resolving converts `training.tokens` to steps, and
    leaves it null. The function raises ProblemsFound for a path that none of them has.
    """

    def get_value(path: str) -> object:
        """Return the value at a path."""
        found = [value for source in sources for value in find_values(source, path)]
        if not found:
            raise problem_error(
                "unknown-key",
                f"'{path}' not found in the recipe",
                origin=origin,
                hint="use the path of a recipe field",
            )
        return next((value for value in found if value is not None), None)

    return get_value


def find_values(source: Mapping[str, object], path: str) -> list[object]:
    """Return the value at a path in plain data, whose keys may be paths; empty if it is absent."""
    if path in source:
        return [source[path]]
    value: object = source
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return []
        value = value[step]
    return [value]
