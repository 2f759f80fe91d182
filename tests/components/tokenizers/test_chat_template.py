"""Templates are programs that others wrote."""

import pytest

from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.config.problems import ProblemsFound

ENDLESS = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"


@pytest.mark.parametrize(
    "text",
    [
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ 2.0 ** 100000 }}",
        "{% set big = 10 %}{{ (big ** 10000) * 1.5 }}",
        ENDLESS,
        "{{ (2 ** 100000) * 1.5 }}",
        "{{ messages[7].content }}",
        "{{ raise_exception('no system message') }}",
    ],
)
def test_a_template_that_fails_is_a_data_problem(text: str) -> None:
    """Row B13 of the defect list: division by zero, overflow and recursion were internal errors."""
    template = ChatTemplate(text, {}, source="test")
    with pytest.raises(ProblemsFound) as error:
        template.render([{"role": "user", "content": "hello"}])
    (problem,) = error.value.problems
    assert problem.code == "data"
    assert problem.message.startswith("the chat template of 'test' rejects the messages")


@pytest.mark.parametrize(
    "text",
    ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% if %}"],
)
def test_a_template_that_cannot_be_compiled_is_a_data_problem(text: str) -> None:
    with pytest.raises(ProblemsFound, match="the chat template of 'test' cannot be read"):
        ChatTemplate(text, {}, source="test")
