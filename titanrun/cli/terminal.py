"""Lines that fit the terminal; in a file or a pipe they are not wrapped."""

import re
import shutil
import sys
from textwrap import wrap
from typing import TextIO

# `name   text`: text after the first wide gap is continued below itself
FIRST_COLUMN_PATTERN = re.compile(r"( *\S.*? {2,})\S")
MIN_TEXT_WIDTH = 20


def get_terminal_width(stream: TextIO | None = None) -> int | None:
    """Return the columns of a stream's terminal (default: stdout), or None without one."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def write_wrapped(text: str, stream: TextIO | None = None) -> None:
    """Write a text to a stream (default: stdout), wrapped if that is a terminal."""
    (stream or sys.stdout).write(wrap_to_width(text, get_terminal_width(stream)))


def wrap_to_width(text: str, width: int | None) -> str:
    """Wrap long lines between words, with continuation lines aligned to the last column."""
    if width is None:
        return text
    return "\n".join(
        line if len(line) <= width else wrap_line(line, width) for line in text.split("\n")
    )


def wrap_line(line: str, width: int) -> str:
    """Wrap one line."""
    column = FIRST_COLUMN_PATTERN.match(line)
    indent = len(column[1]) if column else len(line) - len(line.lstrip())
    longest = max(map(len, line[indent:].split()), default=0)
    if indent > width - MIN_TEXT_WIDTH or (indent + longest > width >= 4 + longest):
        indent = 4
    lines = wrap(
        line,
        width,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join(lines)
