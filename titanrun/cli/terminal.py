"""Lines that fit the terminal they are shown on; in a file or a pipe they stay whole."""

import re
import shutil
import sys
from textwrap import wrap
from typing import TextIO

# `name   text`: what follows the first wide gap is continued below itself
COLUMN = re.compile(r"( *\S.*? {2,})\S")
NARROWEST = 20


def columns(stream: TextIO | None = None) -> int | None:
    """The columns of the terminal that a stream, stdout by default, is; None where it is none."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def fitted(text: str, width: int | None) -> str:
    """The text with its long lines broken between words and continued below their last column."""
    if width is None:
        return text
    return "\n".join(
        line if len(line) <= width else broken(line, width) for line in text.split("\n")
    )


def broken(line: str, width: int) -> str:
    """One line as several."""
    column = COLUMN.match(line)
    indent = len(column[1]) if column else len(line) - len(line.lstrip())
    if indent > width - NARROWEST:
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
