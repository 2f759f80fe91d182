"""How large a recipe may be: far above what people write, far below what could hang a machine."""

from typing import NoReturn

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound

MAX_BYTES = 1024 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 64
MAX_DIGITS = 4300
"""Python refuses to print longer integers, so that no message could show them."""
BITS_PER_DIGIT = 3.32193
MAX_PROBLEMS = 100
"""Problems of one file after which reading or checking ends."""
LONGEST_SHOWN = 60


def cut(text: str) -> str:
    """Text as a message shows it."""
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def too_long(digits: int) -> str:
    """The message about an integer of `digits` digits."""
    return f"an integer of {digits} digits is longer than {MAX_DIGITS}"


def too_large(origin: Origin) -> ProblemsFound:
    """The problem of a text over MAX_BYTES."""
    return ProblemsFound(
        [
            Problem(
                "limit",
                "larger than 1 MiB",
                origin=origin,
                help="keep data in data files and give their path",
            )
        ]
    )


def refuse_count(found: list[Problem], origin: Origin, path: DataPath) -> NoReturn:
    """Ends reading at more than MAX_VALUES values, with the problems found before."""
    advice = "an alias counts with everything it stands for"
    raise ProblemsFound(
        [
            *found,
            Problem(
                "limit", f"more than {MAX_VALUES} values", path=path, origin=origin, help=advice
            ),
        ]
    )


def refuse_depth(found: list[Problem], origin: Origin, path: DataPath) -> NoReturn:
    """Ends reading at more than MAX_DEPTH nested mappings and lists, with the problems found before."""
    raise ProblemsFound(
        [
            *found,
            Problem("limit", f"nested deeper than {MAX_DEPTH} levels", path=path, origin=origin),
        ]
    )
