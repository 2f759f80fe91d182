"""Command lines: a parser whose mistakes are problems, and overrides told apart from options."""

import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NoReturn

from titanrun.config.problems import fail

TORCHTITAN_FLAG = re.compile(r"--[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_\-\[\]]+)+(=.*)?", re.DOTALL)
OVERRIDE = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-\[\]]*(\+=|-=|=|!$)")
OVERRIDE_HELP = "changes after the file, in this order: path=value, path+=item, path-=item, path! (back to the default)"


class Parser(ArgumentParser):
    """An argument parser that raises a problem instead of leaving the process."""

    def __init__(self, command: str, summary: str, examples: str) -> None:
        super().__init__(
            prog=f"titanrun {command}",
            description=summary,
            epilog="examples:\n" + examples,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        loudness = self.add_mutually_exclusive_group()
        loudness.add_argument("-q", "--quiet", action="store_true", help="say nothing beside the answer and errors")
        loudness.add_argument("-v", "--verbose", action="store_true", help="say on stderr what was read, and from where")

    def error(self, message: str) -> NoReturn:
        """A mistake in the command line."""
        raise fail("usage", message, help=f"see {self.prog} --help")


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides, in either spelling, and the other arguments."""
    overrides: list[str] = []
    others: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if TORCHTITAN_FLAG.fullmatch(argument):
            overrides.append(argument)
            if "=" not in argument and waiting and not waiting[0].startswith("--") and not OVERRIDE.match(waiting[0]):
                overrides.append(waiting.pop(0))
        elif OVERRIDE.match(argument) and not argument.startswith("-"):
            overrides.append(argument)
        else:
            others.append(argument)
    return overrides, others
