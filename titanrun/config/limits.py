"""Size limits of recipes: far above normal use, far below what could hang a machine."""

from typing import NoReturn

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound

MAX_BYTES = 1024 * 1024
MAX_VALUES = 10_000
MAX_DEPTH = 64
MAX_DIGITS = 4300
"""Python refuses to print longer integers, so no message could show them."""
BITS_PER_DIGIT = 3.32193
MAX_PROBLEMS = 100
"""Number of problems of one file after which reading or validation stops."""
LONGEST_SHOWN = 60


def truncate_for_message(text: str) -> str:
    """Truncate text for a message."""
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def format_too_many_digits(digits: int) -> str:
    """Return the message about an integer of `digits` digits."""
    return f"an integer of {digits} digits is longer than {MAX_DIGITS}"


def text_too_large_error(origin: Origin) -> ProblemsFound:
    """Build the problem of a text over MAX_BYTES."""
    return ProblemsFound(
        [
            Problem(
                "limit",
                "larger than 1 MiB",
                origin=origin,
                hint="keep data in data files and give their path",
            )
        ]
    )


def raise_too_many_values(problems: list[Problem], origin: Origin, path: DataPath) -> NoReturn:
    """Raise for more than MAX_VALUES values, with the problems found before."""
    advice = "an alias counts as all the values it refers to"
    raise ProblemsFound(
        [
            *problems,
            Problem(
                "limit", f"more than {MAX_VALUES:,} values", path=path, origin=origin, hint=advice
            ),
        ]
    )


def raise_too_deep(problems: list[Problem], origin: Origin, path: DataPath) -> NoReturn:
    """Raise for more than MAX_DEPTH nested mappings and lists, with the problems found before."""
    raise ProblemsFound(
        [
            *problems,
            Problem("limit", f"nested deeper than {MAX_DEPTH} levels", path=path, origin=origin),
        ]
    )
