"""What a field's annotation says."""

from typing import Annotated, Any, Literal, Optional, Union

import pytest
from annotated_types import Gt

from titanrun.config.type_introspection import (
    accepts_auto,
    accepts_null,
    find_item_type,
    get_literal_values,
    unwrap_annotation,
)

Auto = Literal["auto"]


@pytest.mark.parametrize(
    ("annotation", "inner", "null", "auto"),
    [
        (int, int, False, False),
        (int | None, int, True, False),
        (Optional[int], int, True, False),  # noqa: UP045
        (Union[Auto, int], int, False, True),  # noqa: UP007
        (int | Auto, int, False, True),
        (Auto | int | None, int, True, True),
        (Annotated[int, Gt(0)], int, False, False),
        (Annotated[int, Gt(0)] | None, int, True, False),
        (Annotated[Annotated[int, Gt(0)] | Auto, "note"], int, False, True),
        (Auto, Auto, False, True),
        (Auto | None, Auto | None, True, True),
        (Literal["auto", "all"] | None, Literal["auto", "all"], True, False),
        (tuple[int, ...] | None, tuple[int, ...], True, False),
    ],
    ids=str,
)
def test_the_type_behind_null_auto_and_limits(
    annotation: Any, inner: Any, null: bool, auto: bool
) -> None:
    assert unwrap_annotation(annotation) == inner
    assert (accepts_null(annotation), accepts_auto(annotation)) == (null, auto)


def test_items_and_literals_are_found_behind_them_too() -> None:
    assert find_item_type(tuple[Annotated[int, Gt(0)] | None, ...] | None) is int
    assert find_item_type(int) is None
    assert get_literal_values(Literal["a", "b"] | None) == ("a", "b")
    assert get_literal_values(int) == ()
