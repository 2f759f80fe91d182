"""The commands to type after one, in the last line on stderr."""

from argparse import Namespace
from collections.abc import Sequence

from titanrun.cli.messages import print_note
from titanrun.recipe.rundir.next_commands import format_commands


def print_next(options: Namespace, *words: str) -> None:
    """Print `next: titanrun ...`, which -q silences.

    Args:
        options: The parsed command line.
        words: The words of the command after `titanrun`.
    """
    print_choices(options, words)


def print_choices(options: Namespace, *commands: Sequence[str]) -> None:
    """Print the line with several commands to choose from, each as its words."""
    print_note(options, format_commands(*commands))
