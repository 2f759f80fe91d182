"""How a path into a recipe is written: `converters[0].recipe_name`."""

import re
from dataclasses import dataclass

from titanrun.config.problems import DataPath

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
INDEX = re.compile(r"\[([0-9]{1,9})\]")
INDEX_AFTER_DOT = re.compile(r"(?<=\w)\.([0-9]{1,9})\b")


@dataclass(frozen=True, slots=True)
class Step:
    """One key or index of a written path; `start` and `end` are offsets into the text."""

    key: str | int
    start: int
    end: int


class PathMistake(Exception):
    """A path that does not follow the grammar, with the offset where it leaves it."""

    def __init__(self, message: str, offset: int) -> None:
        self.message = message
        self.offset = offset
        super().__init__(message)


def scan_path(text: str, start: int = 0) -> list[Step]:
    """The steps of the path that begins at `start`, as far as they reach: keys joined by dots, indexes in brackets.

    Raises PathMistake where no path begins, after a dot without a key, and at a bracket without an index.
    """
    steps = [scan_key(text, start)]
    while (end := steps[-1].end) < len(text) and text[end] in ".[":
        steps.append(scan_key(text, end + 1) if text[end] == "." else scan_index(text, end))
    return steps


def scan_key(text: str, start: int) -> Step:
    """The key at `start`."""
    found = KEY.match(text, start)
    index = INDEX_AFTER_DOT.match(text, max(0, start - 1))
    if index is not None:
        raise PathMistake(
            f"an index stands in brackets, not behind a dot: {text[: start - 1]}[{index[1]}]", start
        )
    if found is None:
        raise PathMistake(
            "a key is missing"
            if start >= len(text)
            else f"a key cannot begin with '{text[start]}'",
            start,
        )
    return Step(found[0], found.start(), found.end())


def scan_index(text: str, start: int) -> Step:
    """The index in brackets at `start`."""
    found = INDEX.match(text, start)
    if found is None:
        raise PathMistake("brackets hold an index counted from 0", start)
    return Step(int(found[1]), found.start(), found.end())


def parse_path(text: str) -> DataPath:
    """The data path that `text` spells. Raises PathMistake where it is not a path from end to end."""
    steps = scan_path(text)
    if steps[-1].end < len(text):
        raise PathMistake(f"unexpected '{text[steps[-1].end]}' in a path", steps[-1].end)
    return tuple(step.key for step in steps)
