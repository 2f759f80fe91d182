"""Texts in a dataset's config that are more than any text: commits, and formats with columns."""

import re
from string import Formatter
from typing import Annotated, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.conflict import conflict

COMMIT = re.compile(r"[0-9a-f]{40}")


def whole_commit(text: str) -> str:
    """A commit written out: a branch or a tag may mean other data tomorrow."""
    if not COMMIT.fullmatch(text):
        context = {
            "help": "the dataset's page on the Hub lists its commits; copy one with all its 40 digits"
        }
        raise PydanticCustomError("a_commit_of_40_hexadecimal_digits", "is no commit", context)
    return text


Commit: TypeAlias = Annotated[str, AfterValidator(whole_commit)]


def check_format(format: str | None) -> None:
    """A format names at least one column, and each just so."""
    if format is None:
        return
    try:
        parsed = list(Formatter().parse(format))
    except ValueError as error:
        raise conflict(
            f"format cannot be read: {str(error).lower()}",
            "format",
            help="write a brace that is meant as such twice",
        ) from None
    if any(name == "" or spec or conversion for _, name, spec, conversion in parsed) or not any(
        name for _, name, _, _ in parsed
    ):
        raise conflict(
            "format must name columns in braces", "format", help="write it as in '{title}: {body}'"
        )
