"""Conversion between indexes into a text and the UTF-16 offsets of browsers."""

from bisect import bisect_right

from titanrun.config.problems import Origin


class Utf16Text:
    """A text with line feeds, and where its characters beyond U+FFFF are.

    Such a character is one code point, and two units of UTF-16.
    """

    def __init__(self, text: str) -> None:
        """Index `text`."""
        self.text = text
        self.line_starts = [0, *(at + 1 for at, letter in enumerate(text) if letter == "\n")]
        self.wide = [at for at, letter in enumerate(text) if ord(letter) > 0xFFFF]

    def to_utf16(self, index: int) -> int:
        """Return the offset of a code point."""
        at = min(max(index, 0), len(self.text))
        return at + bisect_right(self.wide, at - 1)

    def to_index(self, offset: int) -> int:
        """Return the code point at an offset; the middle of a pair belongs to its character."""
        low, high = 0, len(self.text)
        while low < high:
            middle = (low + high + 1) // 2
            if self.to_utf16(middle) <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def to_span(self, origin: Origin) -> tuple[int, int]:
        """Return the offsets of an origin in this text; it covers at least its own place."""
        line = min(max(origin.line, 1), len(self.line_starts))
        start = self.line_starts[line - 1]
        ends = self.line_starts[line] - 1 if line < len(self.line_starts) else len(self.text)
        first = min(start + origin.column - 1, ends)
        last = min(start + origin.end_column - 1, ends)
        return self.to_utf16(first), self.to_utf16(max(first, last))

    def to_line_and_column(self, index: int) -> tuple[int, int]:
        """Return line and column, both from 1, of a code point."""
        line = bisect_right(self.line_starts, index)
        return line, index - self.line_starts[line - 1] + 1
