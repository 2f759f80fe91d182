"""Syntax of paths into a recipe: `converters[0].recipe_name`."""

import re
from dataclasses import dataclass

from titanrun.config.problems import DataPath

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INDEX = re.compile(r"\[([0-9]{1,9})\]")
INDEX_AFTER_DOT = re.compile(r"(?<=\w)\.([0-9]{1,9})\b")


@dataclass(frozen=True, slots=True)
class PathStep:
    """One key or index of a written path, with its offsets `start` and `end` in the text."""

    key: str | int
    start: int
    end: int


class PathSyntaxError(Exception):
    """Error for a path that does not follow the grammar, with the offset of the error."""

    def __init__(self, message: str, offset: int) -> None:
        self.message = message
        self.offset = offset
        super().__init__(message)


def scan_path(text: str, start: int = 0) -> list[PathStep]:
    """Return the steps of the path that begins at `start`: dotted keys, indexes in brackets.

    The scan stops where the path ends. Raises PathSyntaxError if no path begins there, after a dot
    without a key, and at a bracket without an index.
    """
    steps = [scan_path_key(text, start)]
    while (end := steps[-1].end) < len(text) and text[end] in ".[":
        steps.append(
            scan_path_key(text, end + 1) if text[end] == "." else scan_path_index(text, end)
        )
    return steps


def scan_path_key(text: str, start: int) -> PathStep:
    """Scan the key at `start`."""
    found = KEY.match(text, start)
    index = INDEX_AFTER_DOT.match(text, max(0, start - 1))
    if index is not None:
        raise PathSyntaxError(
            f"write an index in brackets, not after a dot: {text[: start - 1]}[{index[1]}]", start
        )
    if found is None:
        raise PathSyntaxError(
            "a key is missing"
            if start >= len(text)
            else f"a key cannot begin with '{text[start]}'",
            start,
        )
    return PathStep(found[0], found.start(), found.end())


def scan_path_index(text: str, start: int) -> PathStep:
    """Scan the index in brackets at `start`."""
    found = INDEX.match(text, start)
    if found is None:
        raise PathSyntaxError("brackets must contain an index counted from 0", start)
    return PathStep(int(found[1]), found.start(), found.end())


def parse_path(text: str) -> DataPath:
    """Parse the data path in `text`. Raise PathSyntaxError unless the whole text is a path."""
    steps = scan_path(text)
    if steps[-1].end < len(text):
        raise PathSyntaxError(f"unexpected '{text[steps[-1].end]}' in a path", steps[-1].end)
    return tuple(step.key for step in steps)
