"""Output stream on which control characters of printed texts appear as escapes."""

import re
from typing import Any, TextIO, cast

from titanrun.config.control_characters import CONTROL_BUT_LAYOUT, escape_lines

# the colors that titanrun itself sends to terminals
OWN_SEQUENCE = re.compile(r"\x1b\[(?:0|1|2|1;31|1;33|3[1-6])m")


class SafeStream:
    """Text stream that escapes control characters, except in titanrun's own color sequences.

    All other attributes are those of the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def unsafe_stream(self) -> TextIO:
        """The stream itself, for progress bars of libraries."""
        return self._stream

    def write(self, text: str) -> int:
        """Write text and return its length."""
        if CONTROL_BUT_LAYOUT.search(text):
            keeps_colors = self._stream.isatty()
            text = escape_except_colors(text) if keeps_colors else escape_lines(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)


def make_safe(stream: TextIO) -> TextIO:
    """Return the stream with control characters as escapes."""
    return cast(TextIO, SafeStream(stream))


def escape_except_colors(text: str) -> str:
    """Escape the control characters of a text that are not part of a color sequence."""
    pieces, start = [], 0
    for found in OWN_SEQUENCE.finditer(text):
        pieces += [escape_lines(text[start : found.start()]), found[0]]
        start = found.end()
    return "".join([*pieces, escape_lines(text[start:])])
