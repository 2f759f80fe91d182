"""References to environment variables and to other values."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.apply_overrides import apply_overrides, parse_overrides
from titanrun.config.interpolate import escape_references, interpolate
from titanrun.config.problems import DataPath, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_value_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import Node, find_node, to_plain_data

ENVIRONMENT = {
    "HOME": "/home/me",
    "NODES": "8",
    "RATE": "3e-4",
    "FLAG": "true",
    "ZIP": "010",
    "LIST": "[1]",
    "EMPTY": "",
    "NOTE": "5 # five",
}


def tree(text: str) -> Node:
    """A recipe as a tree."""
    return read_value_text(SourceText("r.yaml", text))


def resolved(text: str, environment: Mapping[str, str] = ENVIRONMENT) -> object:
    """A recipe's data with its references replaced."""
    return to_plain_data(interpolate(tree(text), environment))


def problems(text: str) -> tuple[Problem, ...]:
    """What is wrong with a recipe's references."""
    with pytest.raises(ProblemsFound) as found:
        interpolate(tree(text), ENVIRONMENT)
    return found.value.problems


def place(problem: Problem) -> tuple[int, int, int]:
    """Line and columns of a problem."""
    assert problem.origin is not None
    return problem.origin.line, problem.origin.column, problem.origin.end_column


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${env:HOME}", "/home/me"),
        ("${env:HOME}/data", "/home/me/data"),
        ("${env:NODES}", 8),
        ("n${env:NODES}", "n8"),
        ("${env:RATE}", 3e-4),
        ("${env:FLAG}", True),
        ("${env:ZIP}", "010"),
        ("${env:LIST}", "[1]"),
        ("${env:EMPTY}", ""),
        ("${env:EMPTY,5}", ""),
        ("${env:NOTE}", "5 # five"),
        ("${env:MISSING,5}", 5),
        ("${env:MISSING,a,b}", "a,b"),
        ("${env:MISSING,}", ""),
        ("'${env:MISSING, x}'", "x"),
        ("a $${env:HOME} b", "a ${env:HOME} b"),
        ("$$${env:HOME}", "$${env:HOME}"),
        ("$5 {x} $", "$5 {x} $"),
        ("${env:HOME}-${env:NODES}", "/home/me-8"),
    ],
)
def test_environment_variables(text: str, expected: object) -> None:
    value = resolved(f"x: {text}\n")
    assert value == {"x": expected}
    assert type(value["x"]) is type(expected)  # type: ignore[index]


def test_a_text_field_gets_the_text_of_a_variable() -> None:
    root = interpolate(
        tree("x: ${env:NODES}\ny: ${env:NODES}\n"), ENVIRONMENT, is_text=lambda path: path == ("x",)
    )
    assert to_plain_data(root) == {"x": "8", "y": 8}


@pytest.mark.parametrize("value", [5, 5.0, True, None, "text"])
def test_a_whole_value_keeps_its_type(value: object) -> None:
    result = resolved(to_yaml({"a": {"b": value}, "c": "${a.b}", "d": ["${c}"]}))
    assert result == {"a": {"b": value}, "c": value, "d": [value]}
    assert type(result["c"]) is type(value)  # type: ignore[index]


def test_inside_text_values_are_written_as_in_yaml() -> None:
    text = "a: [1, 3e-4, true, null, x]\nb: ${a[0]} ${a[1]} ${a[2]} ${a[3]} ${a[4]}\n"
    assert resolved(text)["b"] == "1 0.0003 true null x"  # type: ignore[index]


def test_chains_resolve_in_any_order() -> None:
    assert resolved("a: ${b}!\nb: ${c}\nc: ${env:NODES}\n") == {"a": "8!", "b": 8, "c": 8}


def test_the_name_of_a_bare_component_is_found() -> None:
    assert resolved("optimizer: adamw\nx: run-${optimizer.name}\n")["x"] == "run-adamw"  # type: ignore[index]


def test_defaults_are_seen_where_the_caller_knows_them() -> None:
    def default_of(path: DataPath) -> object:
        if path == ("training", "steps"):
            return 10
        if path == ("training",):
            return {"steps": 10}
        raise LookupError(path)

    assert to_plain_data(
        interpolate(tree("x: ${training.steps}\n"), {}, get_default=default_of)
    ) == {"x": 10}
    for text, message in {
        "${training}": "'training' is a mapping",
        "${other}": "the recipe has no 'other'",
    }.items():
        with pytest.raises(ProblemsFound, match=message):
            interpolate(tree(f"x: {text}\n"), {}, get_default=default_of)


@pytest.mark.parametrize("default", [None, "auto"])
def test_a_default_that_says_nothing_is_no_part_of_a_text(default: object) -> None:
    def read(text: str) -> object:
        return to_plain_data(interpolate(tree(text), {}, get_default=lambda _: default))

    assert read("x: ${a.b}\n") == {"x": default}
    with pytest.raises(ProblemsFound, match=r"'a\.b' has the default (null|auto), which cannot"):
        read("x: run-${a.b}\n")


def test_values_know_where_they_come_from() -> None:
    root = interpolate(tree("a: 1\nb: ${a}\nc: x${b}\nd: plain\n"), {})
    nodes = [find_node(root, (key,)) for key in "bcd"]
    assert [node.via for node in nodes if node] == ["interpolation", "interpolation", "file"]
    assert [str(node.origin) for node in nodes if node] == [
        "r.yaml:2:4",
        "r.yaml:3:4",
        "r.yaml:4:4",
    ]
    assert [[str(origin) for origin in node.alias_origins] for node in nodes if node] == [
        ["r.yaml:1:4"],
        ["r.yaml:2:4"],
        [],
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("${env:HOM}", "environment variable 'HOM' is not set"),
        ("${env:}", "env: needs a name"),
        ("${env:A B}", "'A B' is not the name of an environment variable"),
        ("${}", "the reference is empty"),
        ("${a", "'${' is never closed"),
        ("${a + 1}", "'a + 1' is not a path, and expressions are not supported"),
        ("${ a }", "' a ' is not a path, and expressions are not supported"),
        ("${file:x}", "unknown reference type 'file:'"),
        ("${env:X,${env:HOME}}", "references do not nest"),
        ("${trainin.steps}", "the recipe has no 'trainin.steps'"),
        ("${training.steps[0]}", "the recipe has no 'training.steps[0]'"),
        ("${training}", "'training' is a mapping, but a reference must point to a single value"),
        ("${list}", "'list' is a list, but a reference must point to a single value"),
    ],
)
@pytest.mark.parametrize("template", ["{}", "é {} b", "'{} it'", '"{}"'])
def test_a_problem_is_shown_at_its_reference(value: str, message: str, template: str) -> None:
    line = f"x: {template.format(value)}"
    (problem,) = problems(f"training: {{steps: 1}}\nlist: []\n{line}\n")
    assert (problem.code, problem.message, problem.path) == ("interpolation", message, ("x",))
    column = line.index("${") + 1
    assert place(problem)[:2] == (3, column)
    assert place(problem)[2] <= len(line) + 1


def test_a_problem_in_folded_text_is_shown_at_the_value() -> None:
    (problem,) = problems("x: >\n  some\n  text ${gone}\n")
    assert place(problem)[:2] == (1, 4)


@pytest.mark.parametrize(
    ("reference", "suggestion"),
    [
        ("training.step", "training.steps"),
        ("steps", "training.steps"),
        ("env:HOMES", "HOME"),
        ("nothing.like.it", None),
    ],
)
def test_suggestions_name_what_was_meant(reference: str, suggestion: str | None) -> None:
    (problem,) = problems(f"training: {{steps: 1}}\nx: ${{{reference}}}\n")
    assert problem.suggestion == suggestion


def test_a_ring_is_shown_once() -> None:
    (problem,) = problems("a: ${b}\nb: x${c}\nc: ${a}\nd: ${a}\n")
    assert (problem.code, problem.message) == ("cycle", "circular reference: a -> b -> c -> a")
    assert place(problem)[0] == 3
    assert [related.path for related in problem.related] == [("a",), ("b",)]
    assert [found.message for found in problems("a: ${a}\n")] == ["circular reference: a -> a"]


def test_follow_ups_are_not_reported_and_all_others_are() -> None:
    found = problems("a: ${gone}\nb: ${a}\nc: ${env:GONE}\n")
    assert [problem.path for problem in sorted(found, key=place)] == [("a",), ("c",)]


def test_an_aliased_value_is_reported_once() -> None:
    assert len(problems("a: &x {b: '${gone}'}\nc: *x\n")) == 1


def test_growing_text_and_endless_chains_are_cut() -> None:
    doubling = (
        "".join(f"a{level}: ${{a{level + 1}}}${{a{level + 1}}}\n" for level in range(40))
        + "a40: xx\n"
    )
    assert {problem.code for problem in problems(doubling)} == {"limit"}
    chain = "".join(f"a{level}: ${{a{level + 1}}}\n" for level in range(3000)) + "a3000: 1\n"
    assert {problem.code for problem in problems(chain)} == {"limit"}


def test_overrides_may_hold_references() -> None:
    root = apply_overrides(tree("a: 5\n"), parse_overrides(["b=${a}", "c=x-${gone}"]))
    with pytest.raises(ProblemsFound) as found:
        interpolate(root, {})
    (problem,) = found.value.problems
    assert (str(problem.origin), place(problem)) == ("<override 2>", (1, 5, 12))


def test_a_variable_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProblemsFound, match="environment variable 'X' is not UTF-8 text"):
        interpolate(tree("x: ${env:X}\n"), {"X": "\udcff"})


@settings(deadline=None)
@given(st.text("${}ab:", max_size=12))
def test_escaped_text_means_itself(text: str) -> None:
    assert resolved(to_yaml({"x": [escape_references(text)]})) == {"x": [text]}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${DATA}", "${env:DATA}"),
        ("a/${DATA}/b", "${env:DATA}"),
        ("${DATA:-x/y}", "${env:DATA,x/y}"),
        ("${env.DATA}", "${env:DATA}"),
        ("${oc.env:DATA}", "${env:DATA}"),
        ("${oc.env:DATA,3}", "${env:DATA,3}"),
        ("${env:DATA:-x}", "${env:DATA,x}"),
    ],
)
def test_a_variable_of_another_syntax_is_told_its_form_here(written: str, meant: str) -> None:
    (found,) = problems(f"x: '{written}'\n")
    assert (found.code, found.hint) == ("interpolation", f"write {meant}")


def test_a_name_in_small_letters_may_be_a_key_of_the_recipe() -> None:
    (found,) = problems("x: '${data}'\n")
    assert str(found.hint).startswith("write ${section.key}, ${env:NAME}")
