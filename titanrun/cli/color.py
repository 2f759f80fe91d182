"""Colors of command output: on terminals only, and not with NO_COLOR."""

import sys
from typing import Literal, TextIO

from titanrun.launch.launch_env import should_use_color

# those that config/safe_stream.py lets through
STYLES = {
    "good": "\x1b[32m",
    "bad": "\x1b[1;31m",
    "warning": "\x1b[1;33m",
    "strong": "\x1b[1m",
    "removed": "\x1b[31m",
    "added": "\x1b[32m",
    "active": "\x1b[36m",
}
OFF = "\x1b[0m"
Style = Literal["good", "bad", "warning", "strong", "removed", "added", "active"]


def style_text(text: str, style: Style | None, stream: TextIO | None = None) -> str:
    """Color each line of a text for `stream` (default: stdout), unless it shows no colors.

    Lay the text out first: colors have no width.
    """
    if style is None or not should_use_color((stream or sys.stdout).isatty()):
        return text
    return "\n".join(f"{STYLES[style]}{line}{OFF}" if line else "" for line in text.split("\n"))
