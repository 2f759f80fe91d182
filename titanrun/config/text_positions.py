"""Conversion of code point indexes to lines and columns."""

import re
from bisect import bisect_right

from titanrun.config.problems import Origin, SourceText

LINE_BREAK = re.compile(r"\r\n|\n|\r")


class TextPositions:
    """Line index of one text."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        breaks = list(LINE_BREAK.finditer(source.text))
        self.line_starts = [0, *(found.end() for found in breaks)]
        self.line_ends = [*(found.start() for found in breaks), len(source.text)]

    def get_line_number(self, index: int) -> int:
        """Return the line, counted from 1, that contains the character at `index`."""
        return bisect_right(self.line_starts, index)

    def get_line_end(self, index: int) -> int:
        """Return the end index of the line of `index`, without its line break."""
        return self.line_ends[bisect_right(self.line_starts, index) - 1]

    def to_origin(self, start: int, end: int) -> Origin:
        """Return the origin from `start` to `end`, truncated at the end of its first line."""
        line = bisect_right(self.line_starts, start)
        first = self.line_starts[line - 1]
        start = min(start, self.line_ends[line - 1])
        end = max(start, min(end, self.line_ends[line - 1]))
        return Origin(self.source, line, start - first + 1, end - first + 1)

    def to_point_origin(self, index: int) -> Origin:
        """Return the origin of one character, which may be a line break or the end of the text."""
        line = bisect_right(self.line_starts, index)
        column = index - self.line_starts[line - 1] + 1
        return Origin(self.source, line, column, column + 1)
