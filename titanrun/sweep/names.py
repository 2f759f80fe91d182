"""Names of run folders: short, readable, and no two alike."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from titanrun.config.emit import flow

LONGEST = 96
DIGEST = 6
NOT_IN_NAMES = re.compile(r"[^\w.+=,-]+")


def point_names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each point, of plain values by path: what varies, `lr=0.001,seed=2`."""
    varying = [
        path for path in all_paths(points) if len({repr(point.get(path)) for point in points}) > 1
    ]
    short = short_paths(varying or all_paths(points))
    names = [joined(point, short) for point in points]
    return [
        name if names.count(name) == 1 else f"{name}-{digest(point)}"
        for name, point in zip(names, points, strict=True)
    ]


def all_paths(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """The paths of all points, in the order in which they come."""
    return list(dict.fromkeys(path for point in points for path in point))


def short_paths(paths: Sequence[str]) -> dict[str, str]:
    """Each path by as many of its last words as tell it from the others."""
    found = {}
    for path in paths:
        words = path.split(".")
        ends = [".".join(words[-count:]) for count in range(1, len(words) + 1)]
        others = [other for other in paths if other != path]
        found[path] = next(
            (end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)),
            path,
        )
    return found


def joined(point: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """The name of one point; a long one ends in a digest of its values."""
    parts = [f"{short[path]}={text(value)}" for path, value in point.items() if path in short]
    name = NOT_IN_NAMES.sub("_", ",".join(parts)).strip("._") or "point"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - DIGEST - 1]}-{digest(point)}"


def text(value: object) -> str:
    """A value in a name; the name of a component stands for all of it."""
    if isinstance(value, dict):
        return str(value.get("name", digest(value)))
    return value if isinstance(value, str) else flow(value)


def digest(values: object) -> str:
    """A few characters that other values do not share."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:DIGEST]
