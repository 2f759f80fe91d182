"""The events of a YAML text, from ruamel.yaml's scanner and parser with their most frequent calls made cheaper."""

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml.error import FileMark
from ruamel.yaml.events import Event
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import Reader
from ruamel.yaml.scanner import Scanner, ScannerError
from ruamel.yaml.tokens import ScalarToken

BLANK = re.compile(r" *(?:#[^\n\r\0]*)?")
FLOW_BLANK = re.compile(r"[ \t]*(?:#[^\n\r\0]*)?")
# what follows these words ends an unquoted scalar for certain: there is no next line to look at
KEY_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?=:[ \n])")
FLOW_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?=[,\]}]|:[ \n])")


class Version:
    """What ruamel's parts ask about the YAML version: always 1.2."""

    processing_version = (1, 2)


class TextReader(Reader):
    """Reads a string that has no byte order mark in it."""

    def forward(self, length: int = 1) -> None:
        """Moves on by `length` characters, counting lines and columns."""
        start = self.pointer
        self.pointer = stop = start + length
        self.index += length
        passed = self.buffer[start:stop]
        if "\n" not in passed and "\r" not in passed:
            self.column += length
            return
        for following, character in enumerate(passed, start + 1):
            if character == "\n" or (character == "\r" and self.buffer[following] != "\n"):
                self.line += 1
                self.column = 0
            else:
                self.column += 1

    def get_mark(self) -> FileMark:
        """The place of the next character, counted from 0."""
        return FileMark(self.name, self.index, self.line, self.column)


class TextScanner(Scanner):
    """Scans blanks and plain words by pattern, all else as ruamel does."""

    reader: Any = None

    def __init__(self, parts: "Parts") -> None:
        self.reader = parts.reader
        super().__init__(parts)

    def check_token(self, *choices: Any) -> bool:
        """Whether the next token is one of `choices`."""
        while (not self.tokens or self.possible_simple_keys) and self.need_more_tokens():
            self.fetch_more_tokens()
        return bool(self.tokens) and (not choices or isinstance(self.tokens[0], choices))

    def get_token(self) -> Any:
        """The next token, taken off."""
        self.check_token()
        self.tokens_taken += 1
        return self.tokens.pop(0)

    def peek_token(self) -> Any:
        """The next token, left in place."""
        self.check_token()
        return self.tokens[0]

    def scan_to_next_token(self) -> None:
        """Moves over spaces, comments and line breaks."""
        reader = self.reader
        while True:
            pattern = FLOW_BLANK if self.flow_context else BLANK
            blank = pattern.match(reader.buffer, reader.pointer)
            if blank is not None and blank.end() != reader.pointer:
                reader.forward(blank.end() - reader.pointer)
            if not self.scan_line_break():
                return
            if not self.flow_context:
                self.allow_simple_key = True

    def scan_plain(self) -> Any:
        """The unquoted scalar that begins here."""
        reader = self.reader
        pattern = FLOW_WORD if self.flow_context else KEY_WORD
        word = pattern.match(reader.buffer, reader.pointer)
        if word is None:
            return super().scan_plain()
        start = reader.get_mark()
        self.allow_simple_key = False
        reader.forward(word.end() - word.start())
        return ScalarToken(word.group(), True, start, reader.get_mark())


class TextParser(Parser):
    """Knows its scanner and version without a look-up at each use."""

    scanner: Any = None
    resolver: Any = Version()

    def __init__(self, parts: "Parts") -> None:
        self.scanner = parts.scanner
        super().__init__(parts)


class Parts:
    """What ruamel's parts expect to find on the object that owns them."""

    typ = "events"
    comment_handling = None
    resolver = Version()

    def __init__(self, text: str) -> None:
        self.doc_infos: list[Any] = [Version()]
        self.reader = TextReader(text)
        self.scanner = TextScanner(self)
        self.parser = TextParser(self)


def events(text: str) -> Iterator[Event]:
    """Every event of `text`; raises ruamel's MarkedYAMLError where it is not YAML."""
    parts = Parts(text)
    try:
        while (event := parts.parser.get_event()) is not None:
            yield event
    except (
        ValueError,
        OverflowError,
    ):  # ruamel converts the digits of escapes and directives without a check
        raise ScannerError(
            None, None, "found a number too large", parts.reader.get_mark()
        ) from None
