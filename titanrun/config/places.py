"""Where in a text something stands: from indexes of code points to lines and columns."""

import re
from bisect import bisect_right

from titanrun.config.problems import Origin, SourceText

LINE_BREAK = re.compile(r"\r\n|\n|\r")


class Places:
    """The lines of one text."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        breaks = list(LINE_BREAK.finditer(source.text))
        self.starts = [0, *(found.end() for found in breaks)]
        self.ends = [*(found.start() for found in breaks), len(source.text)]

    def line_number(self, index: int) -> int:
        """The line, counted from 1, that holds the character at `index`."""
        return bisect_right(self.starts, index)

    def line_end(self, index: int) -> int:
        """The index of the end of the line of `index`, its line break excluded."""
        return self.ends[bisect_right(self.starts, index) - 1]

    def origin(self, start: int, end: int) -> Origin:
        """The place from `start` to `end`, cut at the end of its first line."""
        line = bisect_right(self.starts, start)
        first = self.starts[line - 1]
        start = min(start, self.ends[line - 1])
        end = max(start, min(end, self.ends[line - 1]))
        return Origin(self.source, line, start - first + 1, end - first + 1)

    def point(self, index: int) -> Origin:
        """The place of one character, which may be the line break or the end of the text."""
        line = bisect_right(self.starts, index)
        column = index - self.starts[line - 1] + 1
        return Origin(self.source, line, column, column + 1)
