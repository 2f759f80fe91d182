"""The command to type after one, in the last line on stderr."""

import shlex
from argparse import Namespace

from titanrun.cli.messages import print_note


def print_next(options: Namespace, *words: str) -> None:
    """Print `next: titanrun ...`, which -q silences.

    Args:
        options: The parsed command line.
        words: The words of the command after `titanrun`.
    """
    print_note(options, format_next("titanrun", *words))


def format_next(*words: str) -> str:
    """Format the line with the words of a command, quoted for a shell."""
    return f"next: {shlex.join(words)}"
