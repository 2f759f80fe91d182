"""Paths of the lines of a YAML text in block style, found by indentation alone."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from titanrun.config.problems import DataPath

# `- ` markers, then a key
ENTRY = re.compile(
    r"(?P<items>(?:[ ]*-(?=[ ]|$))*)(?P<indent>[ ]*)"
    r"(?:(?P<key>[\w+*.-]+|\"[^\"]*\"|'[^']*')[ ]*:(?=[ ]|$))?"
)


@dataclass(frozen=True, slots=True)
class BlockLine:
    """Columns of the list markers of a line, the column of its content, its key and value."""

    item_columns: tuple[int, ...]
    column: int
    key: str | None
    value: str


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """A key, or the index of a list item, that later lines may belong to."""

    column: int
    step: str | int

    @property
    def is_item(self) -> bool:
        """Whether this is an item of a list."""
        return isinstance(self.step, int)


@dataclass(slots=True)
class BlockScanner:
    """Reader of one line after the other.

    `scalars` holds the values of each mapping that was met, as written.
    """

    open_entries: list[OpenEntry] = field(default_factory=list)
    scalars: dict[DataPath, dict[str, str]] = field(default_factory=dict)

    @property
    def path(self) -> DataPath:
        """Path of the innermost open entry."""
        return tuple(entry.step for entry in self.open_entries)

    def read_lines(self, lines: Iterable[str]) -> None:
        """Read lines that come before the next one, or after it."""
        for line in lines:
            if line.strip() and not line.lstrip().startswith("#"):
                self.read_line(parse_block_line(line))

    def read_line(self, line: BlockLine) -> None:
        """Open the entries of a line, and close those that it ends."""
        for column in line.item_columns:
            self.open_item(column)
        self.close_from(line.column)
        if line.key is not None:
            text = line.value.partition(" #")[0].strip(" \"'")
            self.scalars.setdefault(self.path, {})[line.key] = text
            self.open_entries.append(OpenEntry(line.column, line.key))

    def open_item(self, column: int) -> None:
        """Open an item of a list whose marker is in `column`, that of its key or further right."""
        index = 0
        while self.open_entries and self.open_entries[-1].column >= column:
            last = self.open_entries[-1]
            if last.column == column:
                if not last.is_item:  # the key of this list
                    break
                index = int(last.step) + 1
            self.open_entries.pop()
        self.open_entries.append(OpenEntry(column, index))

    def close_from(self, column: int) -> None:
        """Close all entries in `column` or further right."""
        while self.open_entries and self.open_entries[-1].column >= column:
            self.open_entries.pop()


def parse_block_line(line: str) -> BlockLine:
    """Return the structure of one line."""
    found = ENTRY.match(line)
    assert found is not None  # every part may be empty
    markers = tuple(place for place, letter in enumerate(found["items"]) if letter == "-")
    column = found.start("key") if found["key"] else found.end("indent")
    key = found["key"].strip("\"'") if found["key"] else None
    return BlockLine(markers, column, key, line[found.end() :])
