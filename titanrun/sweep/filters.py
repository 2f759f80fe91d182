"""Which points of a sweep are run: conditions on their values, and on those of the recipe that they change."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from titanrun.config.problems import Origin, ProblemsFound, SourceText, fail
from titanrun.config.source import read_value
from titanrun.config.tree import plain

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
class Filter:
    """`optimizer.lr < 0.01`, or `model.n_kv_heads <= model.n_heads`: two sides, the right one perhaps a path too."""

    text: str
    path: str
    operator: str
    other: object
    is_path: bool
    origin: Origin

    def holds(self, value_at: Callable[[str], object]) -> bool:
        """Whether a point fulfils it; `value_at` gives the value at a path. Raises ProblemsFound where two values have no order."""
        left = value_at(self.path)
        right = value_at(str(self.other)) if self.is_path else self.other
        try:
            return bool(OPERATORS[self.operator](left, right))
        except TypeError:
            raise fail(
                "conflict",
                f"{left!r} and {right!r} of '{self.text}' have no order",
                origin=self.origin,
            ) from None


def read_filter(text: str, origin: Origin) -> Filter:
    """A condition as it stands in the file. Raises ProblemsFound."""
    found = CONDITION.fullmatch(text)
    if not found:
        help = (
            "write a path, one of <= >= == != < >, and a value or another path: optimizer.lr < 0.01"
        )
        raise fail("usage", f"'{text}' is no condition", origin=origin, help=help)
    path, operator, right = found.groups()
    if PATH.fullmatch(right):
        return Filter(text, path, operator, right, True, origin)
    try:
        return Filter(
            text,
            path,
            operator,
            plain(read_value(SourceText(text, right, "override"))),
            False,
            origin,
        )
    except ProblemsFound:
        raise fail("usage", f"'{right}' is no value", origin=origin) from None


def lookup(point: Mapping[str, object], recipe: object, origin: Origin) -> Callable[[str], object]:
    """The value at a path: the point's, else the recipe's, of plain data. It raises ProblemsFound for a path that neither has."""

    def value_at(path: str) -> object:
        if path in point:
            return point[path]
        value = recipe
        for step in path.split("."):
            if not isinstance(value, dict) or step not in value:
                raise fail(
                    "unknown-key",
                    f"no setting '{path}' to compare",
                    origin=origin,
                    help="name one of the recipe's",
                )
            value = value[step]
        return value

    return value_at
