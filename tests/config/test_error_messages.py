"""Messages about values of the wrong kind."""

from typing import Any

import pytest

from titanrun.config.error_messages import describe_value_error
from titanrun.config.number_messages import ErrorMessage


def of_number_or_auto(value: str) -> ErrorMessage:
    context: dict[str, Any] = {"inner": "int_type", "inner_ctx": {}}
    return describe_value_error("or_auto", context, value)


@pytest.mark.parametrize(
    ("value", "suggestion", "certain"),
    [
        ("Auto", "auto", True),
        ("AUTO", "auto", True),
        ("atuo", "auto", True),
        ("audo", "auto", False),
        ("soon", None, False),
    ],
)
def test_auto_is_offered_where_it_is_meant_and_put_in_where_that_is_certain(
    value: str, suggestion: str | None, certain: bool
) -> None:
    told = of_number_or_auto(value)
    assert told.expected == "a whole number or auto"
    assert told.message == f"expected a whole number or auto, got text '{value}'"
    assert (told.suggestion, told.is_certain) == (suggestion, certain)
    assert told.hint == (None if suggestion is None else "did you mean 'auto'?")


def test_a_word_of_the_inner_type_is_offered_before_auto() -> None:
    context = {
        "inner": "literal_error",
        "inner_ctx": {"expected": "'full', 'half' or 'automatic'"},
    }
    told = describe_value_error("or_auto", context, "Full")
    assert (told.suggestion, told.is_certain) == ("full", True)
    assert told.hint == "did you mean 'full'?"
    told = describe_value_error("or_auto", context, "automatc")
    assert (told.suggestion, told.is_certain) == ("automatic", True)


@pytest.mark.parametrize(("inner", "value"), [("int_type", "10"), ("finite_number", "x")])
def test_a_message_that_helps_already_or_expects_nothing_stays_as_it_is(
    inner: str, value: str
) -> None:
    told = describe_value_error("or_auto", {"inner": inner, "inner_ctx": {}}, value)
    assert told == describe_value_error(inner, {}, value)
    assert (told.expected is None) == (inner == "finite_number")
    assert (told.hint is None) == (inner == "finite_number")


def test_auto_is_one_more_choice_of_a_list() -> None:
    message = describe_value_error("or_auto", {"inner": "bool_type", "inner_ctx": {}}, "maybe")
    assert message.message == "expected true, false or auto, got text 'maybe'"
