"""Events of a YAML text: ruamel.yaml's scanner and parser with faster frequent calls."""

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
# text after these words always ends an unquoted scalar, so the next line need not be checked
KEY_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?=:[ \n])")
FLOW_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?=[,\]}]|:[ \n])")


class YamlVersion:
    """YAML version as queried by ruamel's parts: always 1.2."""

    processing_version = (1, 2)


class TextReader(Reader):
    """Reader of a string without a byte order mark."""

    def forward(self, length: int = 1) -> None:
        """Advance by `length` characters and count lines and columns."""
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
        """Return the location of the next character, counted from 0."""
        return FileMark(self.name, self.index, self.line, self.column)


class TextScanner(Scanner):
    """Scanner that matches blanks and plain words by pattern, and all else as ruamel does."""

    reader: Any = None

    def __init__(self, loader: "RuamelLoader") -> None:
        self.reader = loader.reader
        super().__init__(loader)

    def check_token(self, *choices: Any) -> bool:
        """Return whether the next token is one of `choices`."""
        while (not self.tokens or self.possible_simple_keys) and self.need_more_tokens():
            self.fetch_more_tokens()
        return bool(self.tokens) and (not choices or isinstance(self.tokens[0], choices))

    def get_token(self) -> Any:
        """Remove and return the next token."""
        self.check_token()
        self.tokens_taken += 1
        return self.tokens.pop(0)

    def peek_token(self) -> Any:
        """Return the next token without removing it."""
        self.check_token()
        return self.tokens[0]

    def scan_to_next_token(self) -> None:
        """Skip spaces, comments and line breaks."""
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
        """Scan the unquoted scalar that begins here."""
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
    """Parser that stores its scanner and version instead of looking them up at each use."""

    scanner: Any = None
    resolver: Any = YamlVersion()

    def __init__(self, loader: "RuamelLoader") -> None:
        self.scanner = loader.scanner
        super().__init__(loader)


class RuamelLoader:
    """Attributes that ruamel's parts expect on the object that owns them."""

    typ = "events"
    comment_handling = None
    resolver = YamlVersion()

    def __init__(self, text: str) -> None:
        self.doc_infos: list[Any] = [YamlVersion()]
        self.reader = TextReader(text)
        self.scanner = TextScanner(self)
        self.parser = TextParser(self)


def iter_yaml_events(text: str) -> Iterator[Event]:
    """Yield every event of `text`. Raise ruamel's MarkedYAMLError if it is not YAML."""
    parts = RuamelLoader(text)
    try:
        while (event := parts.parser.get_event()) is not None:
            yield event
    except (
        ValueError,
        OverflowError,
    ):  # ruamel converts the digits of escapes and directives unchecked
        raise ScannerError(
            None, None, "found a number too large", parts.reader.get_mark()
        ) from None
