"""Validators of texts in a dataset's config: commits, and formats with columns."""

import re
from string import Formatter
from typing import Annotated, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from titanrun.config.conflict import conflict_error

COMMIT_PATTERN = re.compile(r"[0-9a-f]{40}")


def validate_commit_hash(text: str) -> str:
    """Return the commit if it is a full hash: a branch or a tag may change."""
    if not COMMIT_PATTERN.fullmatch(text):
        context = {
            "help": "titanrun data pin RECIPE --write writes the commit of a branch or a tag; "
            "or copy one with all its 40 digits from the dataset's page on the Hub"
        }
        raise PydanticCustomError("a_commit_of_40_hexadecimal_digits", "is not a commit", context)
    return text


CommitHash: TypeAlias = Annotated[str, AfterValidator(validate_commit_hash)]


def check_column_format(column_format: str | None) -> None:
    """Check that a format names at least one column, without conversions."""
    if column_format is None:
        return
    try:
        parsed = list(Formatter().parse(column_format))
    except ValueError as error:
        raise conflict_error(
            f"format cannot be read: {str(error).lower()}",
            "format",
            hint="double the braces that are not columns",
        ) from None
    if any(name == "" or spec or conversion for _, name, spec, conversion in parsed) or not any(
        name for _, name, _, _ in parsed
    ):
        raise conflict_error(
            "format must name columns in braces", "format", hint="write it as in '{title}: {body}'"
        )
