"""The word `-` in place of a recipe: the text on standard input."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from titanrun.config.compose import is_absent
from titanrun.config.limits import MAX_BYTES
from titanrun.config.problems import problem_error
from titanrun.config.source_streams import provide_text

STDIN = "-"
DEFAULT_NAME = "stdin"


def add_stdin_option(parser: ArgumentParser) -> None:
    """Add --stdin-name."""
    parser.add_argument(
        "--stdin-name",
        metavar="FILE",
        help="file that the text of - stands for: its name in messages, its format, and the "
        "folder of what it extends; nothing is read from it",
    )


def read_stdin_argument(words: Sequence[str], options: Namespace) -> list[str]:
    """Return the words with the name of the text on standard input in place of `-`.

    Standard input is read at most once. A stage of it is `NAME#ID`, by the name in messages.

    Raises:
        ProblemsFound: There is no standard input, or nothing for --stdin-name to name.
    """
    name = options.stdin_name or DEFAULT_NAME
    if not any(word == STDIN or names_stage(word, name) for word in words):
        if options.stdin_name is not None:
            raise problem_error(
                "usage",
                "--stdin-name without a recipe from standard input",
                hint="write - in place of the recipe",
            )
        return list(words)
    if sys.stdin is None:
        raise problem_error("file", "- needs standard input, which is closed")
    provide_text(name, sys.stdin.buffer.read(MAX_BYTES + 1))
    return [name if word == STDIN else word for word in words]


def names_stage(word: str, name: str) -> bool:
    """Return whether a word names a stage of the text called `name`, and no file."""
    return (
        word.startswith(f"{name}#")
        and is_absent(word)
        and (name != DEFAULT_NAME or is_absent(name))
    )
