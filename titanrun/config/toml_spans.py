"""Walks over a TOML text to find where every key and value stands; what they mean is left to tomli."""

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import tomli

from titanrun.config.limits import MAX_DEPTH, MAX_DIGITS, MAX_PROBLEMS, MAX_VALUES
from titanrun.config.problems import DataPath

Span = tuple[int, int]

BLANK = re.compile(r"[ \t]*+")
GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*+)*+")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
# Python before 3.11.5 loses its way where a possessive repeat holds a part that may match in two ways
TEXT = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!"")|""(?!"))*"{3,5}'
    r"|'''(?:[^']|'(?!'')|''(?!'))*'{3,5}"
    r'|"(?!"")(?:[^"\\\n]|\\.)*+"'
    r"|'(?!'')[^'\n]*+'"
)
# a date and its time may be separated by a space
BARE_VALUE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[^\s,\]}#]*|[^\s,\]}#\[{\"'=]+")


class Lost(Exception):
    """The text is no TOML from here on; tomli will say why."""


class TooMuch(Exception):
    """A limit is passed at `span`."""

    def __init__(self, limit: str, span: Span, path: DataPath) -> None:
        super().__init__(limit)
        self.limit = limit
        self.span = span
        self.path = path


class Spot(NamedTuple):
    """Where a value stands, and the key that leads to it."""

    key: Span | None
    value: Span


@dataclass(slots=True)
class Spots:
    """Every value of a text by its path, the keys that are given again, and how far the text could be followed."""

    found: dict[DataPath, Spot] = field(default_factory=dict)
    again: list["Repeat"] = field(default_factory=list)
    end: int = 0


class Repeat(NamedTuple):
    """A key that was given before, at `first`."""

    path: DataPath
    key: Span
    first: Span


class KeyPart(NamedTuple):
    """One part of a dotted key."""

    name: str
    span: Span


def find_spots(text: str) -> Spots:
    """The spots of a whole text, or up to where it is no TOML. Raises TooMuch."""
    walker = TomlWalker(text)
    with suppress(Lost):
        walker.walk()
    walker.spots.end = walker.position
    return walker.spots


class TomlWalker:
    """The state of one pass: `position` in the text and the path of the current table."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.table: DataPath = ()
        self.lengths: dict[DataPath, int] = {}
        self.spots = Spots()

    def walk(self) -> None:
        """Goes through all statements."""
        while self.skip(GAP) < len(self.text):
            if self.text[self.position] == "[":
                self.header()
            else:
                self.pair(self.table)

    def skip(self, pattern: re.Pattern[str]) -> int:
        """Moves behind blanks and returns the position there."""
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return self.position

    def take(self, word: str) -> bool:
        """Moves behind `word`, if it stands here."""
        taken = self.text.startswith(word, self.position)
        self.position += len(word) if taken else 0
        return taken

    def expect(self, word: str) -> None:
        """Moves behind `word`, which must stand here."""
        if not self.take(word):
            raise Lost

    def put(self, path: DataPath, key: Span | None, value: Span) -> None:
        """Notes where a new value stands."""
        if len(path) > MAX_DEPTH:
            raise TooMuch("depth", value, path)
        self.spots.found[path] = Spot(key, value)
        if len(self.spots.found) >= MAX_VALUES:
            raise TooMuch("values", value, path)

    def repeat(self, path: DataPath, key: Span, before: Spot) -> None:
        """Notes a key that has a value already."""
        self.spots.again.append(Repeat(path, key, before.key or before.value))
        if len(self.spots.again) >= MAX_PROBLEMS:
            raise Lost

    def header(self) -> None:
        """`[table]` or `[[table]]`."""
        start = self.position
        many = self.take("[[")
        if not many:
            self.expect("[")
        parts = self.key()
        self.expect("]]" if many else "]")
        span = (start, self.position)
        path = (*self.open(parts[:-1], ()), parts[-1].name)
        if many:
            self.open(parts[-1:], path[:-1], default=span)
            index = self.lengths[path] = self.lengths.get(path, 0) + 1
            path = (*path, index - 1)
            self.put(path, None, span)
        else:
            self.declare(path, parts[-1].span, span)
        self.table = path

    def declare(self, path: DataPath, key: Span, span: Span) -> None:
        """Notes a `[table]`, which may have been opened by a table below it."""
        before = self.spots.found.get(path)
        if before is not None and before.key != before.value:
            self.repeat(path, key, before)
        else:
            self.put(path, key, span)

    def open(
        self, parts: list[KeyPart], path: DataPath, *, default: Span | None = None
    ) -> DataPath:
        """The path of a table that is opened in passing, by `parts` below `path`."""
        for part in parts:
            path = (*path, part.name)
            if path not in self.spots.found:
                self.put(path, part.span, default or part.span)
            if default is None and path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def pair(self, table: DataPath) -> None:
        """`key = value` in a table."""
        parts = self.key()
        self.expect("=")
        self.skip(BLANK)
        last = parts[-1]
        path = (*self.open(parts[:-1], table), last.name)
        before = self.spots.found.get(path)
        if before is not None:
            self.repeat(path, last.span, before)
        self.value(path, last.span)
        if before is not None:
            self.spots.found[path] = before

    def key(self) -> list[KeyPart]:
        """A key, dotted or not."""
        parts = [self.key_part()]
        while self.take("."):
            parts.append(self.key_part())
            if len(parts) > MAX_DEPTH:
                raise TooMuch("depth", parts[-1].span, tuple(part.name for part in parts))
        return parts

    def key_part(self) -> KeyPart:
        """One part of a key, between blanks."""
        start = self.skip(BLANK)
        quoted = self.text[start : start + 1] in ("'", '"')
        found = (TEXT if quoted else BARE_KEY).match(self.text, start)
        if found is None:
            raise Lost
        self.position = found.end()
        span = found.span()
        self.skip(BLANK)
        return KeyPart(unquoted(found.group()) if quoted else found.group(), span)

    def value(self, path: DataPath, key: Span | None) -> None:
        """The value at `path`."""
        start = self.position
        if self.text[start : start + 1] in ("[", "{"):
            self.collection(path, key)
            return
        found = TEXT.match(self.text, start)
        if found is None:
            found = BARE_VALUE.match(self.text, start)
            if found is None:
                raise Lost
            if found.end() - start > MAX_DIGITS:
                raise TooMuch("digits", found.span(), path)
        self.position = found.end()
        self.put(path, key, found.span())

    def collection(self, path: DataPath, key: Span | None) -> None:
        """An array or an inline table."""
        start = self.position
        if len(path) >= MAX_DEPTH:
            raise TooMuch("depth", (start, start + 1), path)
        self.put(path, key, (start, start + 1))
        close = "]" if self.text[start] == "[" else "}"
        self.position += 1
        count = 0
        self.skip(GAP)
        while not self.take(close):
            if close == "]":
                self.value((*path, count), None)
            else:
                self.pair(path)
            count += 1
            self.skip(GAP)
            if not self.take(","):
                self.expect(close)
                break
            self.skip(GAP)
        self.spots.found[path] = Spot(key, (start, self.position))


def unquoted(text: str) -> str:
    """The key that a quoted key spells."""
    if "\\" not in text:
        return text[1:-1]
    try:
        return next(iter(tomli.loads(f"{text} = 0")))
    except tomli.TOMLDecodeError:
        raise Lost from None
