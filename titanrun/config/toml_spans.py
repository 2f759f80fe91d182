"""Locations of all keys and values in a TOML text; tomli interprets the values."""

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
# Python before 3.11.5 mismatches a possessive repeat of a part that can match in two ways
TEXT = re.compile(
    r'"""(?:[^"\\]|\\[\s\S]|"(?!"")|""(?!"))*"{3,5}'
    r"|'''(?:[^']|'(?!'')|''(?!'))*'{3,5}"
    r'|"(?!"")(?:[^"\\\n]|\\.)*+"'
    r"|'(?!'')[^'\n]*+'"
)
# a date and its time may be separated by a space
BARE_VALUE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[^\s,\]}#]*|[^\s,\]}#\[{\"'=]+")


class NotTomlError(Exception):
    """The text is not TOML from here on; tomli reports the reason."""


class TomlLimitError(Exception):
    """A limit is exceeded at `span`."""

    def __init__(self, limit: str, span: Span, path: DataPath) -> None:
        super().__init__(limit)
        self.limit = limit
        self.span = span
        self.path = path


class ValueSpan(NamedTuple):
    """Location of a value and of the key that leads to it."""

    key: Span | None
    value: Span


@dataclass(slots=True)
class TomlSpans:
    """Every value of a text by path, the repeated keys, and how far the text could be parsed."""

    by_path: dict[DataPath, ValueSpan] = field(default_factory=dict)
    repeated_keys: list["RepeatedKey"] = field(default_factory=list)
    end: int = 0


class RepeatedKey(NamedTuple):
    """A key that was already given, at `first`."""

    path: DataPath
    key: Span
    first: Span


class KeyPart(NamedTuple):
    """One part of a dotted key."""

    name: str
    span: Span


def find_toml_spans(text: str) -> TomlSpans:
    """Return the spans of a whole text, or up to the first invalid position.

    Raises TomlLimitError.
    """
    walker = TomlWalker(text)
    with suppress(NotTomlError):
        walker.walk()
    walker.spans.end = walker.position
    return walker.spans


class TomlWalker:
    """State of one pass: `position` in the text and the path of the current table."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.table: DataPath = ()
        self.lengths: dict[DataPath, int] = {}
        self.spans = TomlSpans()

    def walk(self) -> None:
        """Parse all statements."""
        while self.skip(GAP) < len(self.text):
            if self.text[self.position] == "[":
                self.parse_header()
            else:
                self.parse_pair(self.table)

    def skip(self, pattern: re.Pattern[str]) -> int:
        """Move past blanks and return the position there."""
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return self.position

    def accept(self, word: str) -> bool:
        """Move past `word` if it is next, and return whether it was."""
        taken = self.text.startswith(word, self.position)
        self.position += len(word) if taken else 0
        return taken

    def expect(self, word: str) -> None:
        """Move past `word`, which must be next."""
        if not self.accept(word):
            raise NotTomlError

    def record_value(self, path: DataPath, key: Span | None, value: Span) -> None:
        """Record the location of a new value."""
        if len(path) > MAX_DEPTH:
            raise TomlLimitError("depth", value, path)
        self.spans.by_path[path] = ValueSpan(key, value)
        if len(self.spans.by_path) >= MAX_VALUES:
            raise TomlLimitError("values", value, path)

    def record_repeated_key(self, path: DataPath, key: Span, before: ValueSpan) -> None:
        """Record a key that already has a value."""
        self.spans.repeated_keys.append(RepeatedKey(path, key, before.key or before.value))
        if len(self.spans.repeated_keys) >= MAX_PROBLEMS:
            raise NotTomlError

    def parse_header(self) -> None:
        """Parse `[table]` or `[[table]]`."""
        start = self.position
        many = self.accept("[[")
        if not many:
            self.expect("[")
        parts = self.parse_key()
        self.expect("]]" if many else "]")
        span = (start, self.position)
        path = (*self.open_tables(parts[:-1], ()), parts[-1].name)
        if many:
            self.open_tables(parts[-1:], path[:-1], default=span)
            index = self.lengths[path] = self.lengths.get(path, 0) + 1
            path = (*path, index - 1)
            self.record_value(path, None, span)
        else:
            self.record_table(path, parts[-1].span, span)
        self.table = path

    def record_table(self, path: DataPath, key: Span, span: Span) -> None:
        """Record a `[table]`, which a table below it may have opened."""
        before = self.spans.by_path.get(path)
        if before is not None and before.key != before.value:
            self.record_repeated_key(path, key, before)
        else:
            self.record_value(path, key, span)

    def open_tables(
        self, parts: list[KeyPart], path: DataPath, *, default: Span | None = None
    ) -> DataPath:
        """Open the tables named by `parts` below `path` implicitly and return the last path."""
        for part in parts:
            path = (*path, part.name)
            if path not in self.spans.by_path:
                self.record_value(path, part.span, default or part.span)
            if default is None and path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def parse_pair(self, table: DataPath) -> None:
        """Parse `key = value` in a table."""
        parts = self.parse_key()
        self.expect("=")
        self.skip(BLANK)
        last = parts[-1]
        path = (*self.open_tables(parts[:-1], table), last.name)
        before = self.spans.by_path.get(path)
        if before is not None:
            self.record_repeated_key(path, last.span, before)
        self.parse_value(path, last.span)
        if before is not None:
            self.spans.by_path[path] = before

    def parse_key(self) -> list[KeyPart]:
        """Parse a key, dotted or not."""
        parts = [self.parse_key_part()]
        while self.accept("."):
            parts.append(self.parse_key_part())
            if len(parts) > MAX_DEPTH:
                raise TomlLimitError("depth", parts[-1].span, tuple(part.name for part in parts))
        return parts

    def parse_key_part(self) -> KeyPart:
        """Parse one part of a key, between blanks."""
        start = self.skip(BLANK)
        quoted = self.text[start : start + 1] in ("'", '"')
        found = (TEXT if quoted else BARE_KEY).match(self.text, start)
        if found is None:
            raise NotTomlError
        self.position = found.end()
        span = found.span()
        self.skip(BLANK)
        return KeyPart(unquote_key(found.group()) if quoted else found.group(), span)

    def parse_value(self, path: DataPath, key: Span | None) -> None:
        """Parse the value at `path`."""
        start = self.position
        if self.text[start : start + 1] in ("[", "{"):
            self.parse_collection(path, key)
            return
        found = TEXT.match(self.text, start)
        if found is None:
            found = BARE_VALUE.match(self.text, start)
            if found is None:
                raise NotTomlError
            if found.end() - start > MAX_DIGITS:
                raise TomlLimitError("digits", found.span(), path)
        self.position = found.end()
        self.record_value(path, key, found.span())

    def parse_collection(self, path: DataPath, key: Span | None) -> None:
        """Parse an array or an inline table."""
        start = self.position
        if len(path) >= MAX_DEPTH:
            raise TomlLimitError("depth", (start, start + 1), path)
        self.record_value(path, key, (start, start + 1))
        close = "]" if self.text[start] == "[" else "}"
        self.position += 1
        count = 0
        self.skip(GAP)
        while not self.accept(close):
            if close == "]":
                self.parse_value((*path, count), None)
            else:
                self.parse_pair(path)
            count += 1
            self.skip(GAP)
            if not self.accept(","):
                self.expect(close)
                break
            self.skip(GAP)
        self.spans.by_path[path] = ValueSpan(key, (start, self.position))


def unquote_key(text: str) -> str:
    """Return the text of a quoted key."""
    if "\\" not in text:
        return text[1:-1]
    try:
        return next(iter(tomli.loads(f"{text} = 0")))
    except tomli.TOMLDecodeError:
        raise NotTomlError from None
