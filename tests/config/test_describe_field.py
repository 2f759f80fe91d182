"""How the values that a field takes are told."""

from typing import Any, Literal

import pytest

from titanrun.config.describe_field import format_type


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "true or false"),
        (bool | None, "true, false or null"),
        (int, "whole number"),
        (float | Literal["auto"], "number or auto"),
        (tuple[str, ...], "list of text"),
        (Literal["one", "two"], "one or two"),
    ],
    ids=str,
)
def test_every_value_that_a_type_takes_is_named(annotation: Any, words: str) -> None:
    assert format_type(annotation) == words
