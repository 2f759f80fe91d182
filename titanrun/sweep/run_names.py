"""Names of run folders: short, readable and unique."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from titanrun.config.serialize import to_flow_yaml

MAX_NAME_LENGTH = 96
DIGEST_LENGTH = 6
NOT_IN_NAMES = re.compile(r"[^\w.+=,-]+")


def build_point_names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Build a name for each point (plain values by path) from its varying values.

    Example: `lr=0.001,seed=2`.
    """
    varying = [
        path
        for path in collect_paths(points)
        if len({repr(point.get(path)) for point in points}) > 1
    ]
    short = shorten_paths(varying or collect_paths(points))
    names = [format_point_name(point, short) for point in points]
    return [
        name if names.count(name) == 1 else f"{name}-{compute_short_digest(point)}"
        for name, point in zip(names, points, strict=True)
    ]


def collect_paths(points: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the paths of all points in order of appearance."""
    return list(dict.fromkeys(path for point in points for path in point))


def shorten_paths(paths: Sequence[str]) -> dict[str, str]:
    """Shorten each path to as many of its last keys as distinguish it from the others."""
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


def format_point_name(point: Mapping[str, Any], short: Mapping[str, str]) -> str:
    """Build the name of one point; a long one ends in a digest of its values."""
    parts = [
        f"{short[path]}={format_name_value(value)}"
        for path, value in point.items()
        if path in short
    ]
    name = NOT_IN_NAMES.sub("_", ",".join(parts)).strip("._") or "point"
    return (
        name
        if len(name) <= MAX_NAME_LENGTH
        else f"{name[: MAX_NAME_LENGTH - DIGEST_LENGTH - 1]}-{compute_short_digest(point)}"
    )


def format_name_value(value: object) -> str:
    """Format a value in a name; a component is represented by its name."""
    if isinstance(value, dict):
        return str(value.get("name", compute_short_digest(value)))
    return value if isinstance(value, str) else to_flow_yaml(value)


def compute_short_digest(values: object) -> str:
    """Compute a digest of a few characters that distinguishes the values."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:DIGEST_LENGTH]
