"""Positions, scalars, aliases, limits and problems of the YAML reader."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.tree import Node, find_node, iter_nodes, to_plain_data


def read(text: str) -> Node:
    return read_source_text(SourceText("r.yaml", text), "yaml")


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ProblemsFound) as found:
        read(text)
    return list(found.value.problems)


def problem_of(text: str) -> Problem:
    [problem] = problems_of(text)
    return problem


def span(origin: Origin | None) -> tuple[int, int, int]:
    assert origin is not None
    return origin.line, origin.column, origin.end_column


def value_of(word: str) -> object:
    return to_plain_data(read(f"a: {word}"))["a"]


def test_keys_and_values_know_line_and_columns() -> None:
    root = read(
        "# top\ntraining:  # section\n  steps: 100\n  lr: 3e-4  # rate\nlist:\n- é: [a, 'b c']\n"
    )
    steps, item = find_node(root, ("training", "steps")), find_node(root, ("list", 0, "é"))
    assert span(root.origin) == (2, 1, 10)
    assert span(root.value["training"].key) == (2, 1, 9)
    assert span(find_node(root, ("training",)).origin) == (3, 3, 13)
    assert span(steps.key) == (3, 3, 8)
    assert span(steps.origin) == (3, 10, 13)
    assert span(find_node(root, ("list",)).origin) == (6, 1, 16)
    assert span(find_node(root, ("list", 0)).origin) == (6, 3, 16)
    assert find_node(root, ("list", 0)).key is None
    assert span(item.origin) == (6, 6, 16)
    assert span(item.value[1].origin) == (6, 10, 15)


def test_multi_line_values_end_with_their_first_line() -> None:
    root = read('a: {b: 1,\n  c: 2}\nd: "x\n  y"\ne: |  # note\n  text\nf: one\n  two\n')
    assert span(find_node(root, ("a",)).origin) == (1, 4, 10)
    assert span(find_node(root, ("d",)).origin) == (3, 4, 6)
    assert span(find_node(root, ("e",)).origin) == (5, 4, 5)
    assert span(find_node(root, ("f",)).origin) == (7, 4, 7)
    assert to_plain_data(root) == {"a": {"b": 1, "c": 2}, "d": "x y", "e": "text\n", "f": "one two"}


def test_an_empty_value_is_null_at_its_key() -> None:
    root = read("steps:\nlist:\n  -\n  - 1\n")
    assert root.value["steps"] == Node(None, root.value["steps"].key, root.value["steps"].key)
    assert span(find_node(root, ("list", 0)).origin) == (3, 3, 4)


def test_empty_brackets_are_empty_collections() -> None:
    root = read("a: {}\nb: []\n")
    assert to_plain_data(root) == {"a": {}, "b": []}
    assert span(root.value["b"].origin) == (2, 4, 6)


def test_byte_order_mark_and_crlf_do_not_shift_positions() -> None:
    root = read("a: 1\r\nb:\r\n  - x\r\n")
    assert to_plain_data(root) == {"a": 1, "b": ["x"]}
    assert span(find_node(root, ("b", 0)).origin) == (3, 5, 6)


FLOATS = {
    "3e-4": 3e-4,
    "1e6": 1e6,
    ".5": 0.5,
    "5.": 5.0,
    "00.5": 0.5,
    "-1.5E+3": -1500.0,
    ".inf": math.inf,
    "-.INF": -math.inf,
}
INTEGERS = {"0x1F": 31, "0o17": 15, "+7": 7, "-0": 0, "0": 0, str(10**30): 10**30}
WORDS = {"true": True, "False": False, "TRUE": True, "null": None, "~": None, "Null": None}


@pytest.mark.parametrize(("word", "value"), [*FLOATS.items(), *INTEGERS.items(), *WORDS.items()])
def test_words_of_the_core_schema_have_its_values(word: str, value: object) -> None:
    assert (value_of(word), type(value_of(word))) == (value, type(value))


@pytest.mark.parametrize(
    "word",
    [
        "on",
        "yes",
        "1_000",
        "1:30:00",
        "'12'",
        '"true"',
        "1e",
        "0x",
        "0b1",
        "tRue",
        "2020-01-01",
        "4k",
        "e5",
        "+",
        "\uff11",
    ],
)
def test_all_other_words_are_text(word: str) -> None:
    assert value_of(word) == word.strip("'\"")


def test_nan_is_read() -> None:
    assert math.isnan(value_of(".nan"))


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("010", "write 10, or 0o10 if octal is meant"),
        ("-010", "write -10, or -8 if octal is meant"),
        ("00", "write 0"),
        ("08", "write 8"),
    ],
)
def test_a_leading_zero_is_ambiguous(word: str, hint: str) -> None:
    problem = problem_of(f"a:\n  b: {word}")
    assert (problem.code, problem.path, problem.hint, problem.got) == (
        "ambiguous-number",
        ("a", "b"),
        hint,
        word,
    )
    assert span(problem.origin) == (2, 6, 6 + len(word))


@pytest.mark.parametrize(
    "word", ["9" * 4301, "-" + "9" * 4301, "0x" + "f" * 4000, "0o" + "7" * 9000, "0" * 5000]
)
def test_integers_too_long_to_print_are_refused(word: str) -> None:
    assert problem_of(f"a: {word}").code == "limit"
    assert value_of("9" * 4300) == int("9" * 4300)


def test_a_float_that_overflows_is_refused() -> None:
    assert problem_of("a: 1e999").code == "out-of-range"


def test_an_alias_shares_the_value_and_names_both_places() -> None:
    root = read("a: &x\n  b: 1\nc: *x\n")
    assert root.value["c"].value is root.value["a"].value
    assert span(root.value["c"].origin) == (2, 3, 7)
    assert span(root.value["c"].key) == (3, 1, 2)
    assert [span(place) for place in root.value["c"].alias_origins] == [(3, 4, 6)]


def test_an_anchor_is_no_part_of_the_value() -> None:
    root = read("a: &x 10\nb: &y  # note\n  c: 1\nd: &z\ne: [&w 1, *w]\n")
    assert span(root.value["a"].origin) == (1, 7, 9)
    assert span(root.value["b"].origin) == (3, 3, 7)
    assert root.value["d"].origin == root.value["d"].key
    assert to_plain_data(root) == {"a": 10, "b": {"c": 1}, "d": None, "e": [1, 1]}


def test_a_later_anchor_replaces_an_earlier_one() -> None:
    assert to_plain_data(read("a: &x 1\nb: *x\nc: &x 2\nd: *x\n")) == {
        "a": 1,
        "b": 1,
        "c": 2,
        "d": 2,
    }


def test_own_keys_win_over_merged_ones_and_earlier_merges_over_later() -> None:
    root = read(
        "x-a: &a {p: 1, q: 1}\nx-b: &b {q: 2, r: 2}\nc:\n  <<: [*a, *b]\n  p: 3\nd: {<<: *b}\n"
    )
    assert to_plain_data(root)["c"] == {"p": 3, "q": 1, "r": 2}
    assert to_plain_data(root)["d"] == {"q": 2, "r": 2}
    merged = find_node(root, ("c", "r"))
    assert span(merged.origin) == (2, 19, 20)
    assert [span(place) for place in merged.alias_origins] == [(4, 3, 5)]


def test_a_quoted_merge_key_is_a_key() -> None:
    assert to_plain_data(read("'<<': 1")) == {"<<": 1}


@pytest.mark.parametrize("value", ["1", "{a: 1}", "[1]", "", "[*s]", "*s"])
def test_a_merge_of_anything_else_is_a_problem(value: str) -> None:
    assert problem_of(f"s: &s text\na:\n  <<: {value}\n").code == "wrong-type"


def test_two_merge_keys_are_a_duplicate() -> None:
    problem = problem_of("x: &x {a: 1}\nb:\n  <<: *x\n  <<: *x\n")
    assert (problem.code, problem.origin.line, problem.related[0].origin.line) == (
        "duplicate-key",
        4,
        3,
    )


def test_a_duplicate_key_names_the_first_place() -> None:
    first, second = problems_of("a: 1\nb: {c: 1, c: 2}\na: 3\n")
    assert (first.path, span(first.origin), span(first.related[0].origin)) == (
        ("b", "c"),
        (2, 11, 12),
        (2, 5, 6),
    )
    assert (second.path, span(second.origin), span(second.related[0].origin)) == (
        ("a",),
        (3, 1, 2),
        (1, 1, 2),
    )


@pytest.mark.parametrize(
    "tag",
    ["!foo", "!!python/object:os.system", "!!str", "!", "!<tag:x>", "!e!f", "&a !foo", "!foo &a"],
)
def test_every_tag_is_refused(tag: str) -> None:
    problem = problem_of(f"a: {tag} x")
    assert problem.code == "tag"
    assert problem.origin.line == 1


@pytest.mark.parametrize("key", ["1", "true", "null", "010", "3e-4", "[a]", "{a: 1}", "*x", ""])
def test_keys_other_than_text_are_refused(key: str) -> None:
    problem = problem_of(f"x: &x 1\n? {key}\n: 2\n")
    assert (problem.code, problem.origin.line) == ("wrong-type", 2)
    assert problem.message.startswith("keys are text, not ")


def test_text_that_looks_like_a_number_may_be_a_key() -> None:
    assert to_plain_data(read("'1': 1\non: 2\n1_0: 3\n")) == {"1": 1, "on": 2, "1_0": 3}


@pytest.mark.parametrize("text", ["", "\n", "# only\n  # comments\n", "---\n", "---\n# c\n...\n"])
def test_a_text_without_values_is_empty(text: str) -> None:
    assert problem_of(text).code == "empty"


@pytest.mark.parametrize("text", ["- a\n", "text", "null", "[1]", "10"])
def test_a_text_that_is_no_mapping_is_of_the_wrong_type(text: str) -> None:
    assert problem_of(text).code == "wrong-type"


def test_a_bomb_of_aliases_is_refused_without_expanding_it() -> None:
    bomb = "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 1}]\n" for i in range(29)
    )
    assert problem_of(bomb).code == "limit"
    merges = (
        "b: &b {"
        + ", ".join(f"k{i}: 1" for i in range(200))
        + "}\n"
        + "".join(f"m{i}: {{<<: *b}}\n" for i in range(60))
    )
    assert problem_of(merges).code == "limit"


def test_ten_thousand_values_are_accepted() -> None:
    items = ", ".join(["1"] * 9998)
    assert len(read(f"a: [{items}]").value["a"].value) == 9998
    assert problem_of(f"a: [{items}, 1]").code == "limit"


def test_an_anchor_inside_of_itself_is_refused() -> None:
    problem = problem_of("a: &x\n  b: [*x]\n")
    assert (problem.code, problem.path) == ("limit", ("a", "b", 0))


def test_sixty_four_levels_are_accepted() -> None:
    assert read("a: " + "[" * 63 + "1" + "]" * 63)
    assert problem_of("a: " + "[" * 64 + "1" + "]" * 64).code == "limit"
    assert problem_of("[" * 5000).code == "limit"


def test_aliases_cannot_nest_deeper_than_brackets() -> None:
    chain = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 70))
    problem = problem_of(chain)
    assert (problem.code, problem.origin.line) == ("limit", 64)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("a:\n\tb: 1\n", 2, 1, "a tab in the indentation"),
        ("a: 1\t# c\n", 1, 5, "a tab outside of quotes"),
        ("a:\n\u00a0\u00a0b: 1\n", 2, 1, "U+00A0"),
        ("a: 1\n\u00a0c\nb: 2\n", 2, 1, "U+00A0 in the indentation"),
        ("a: {b: ${env:X}}\n", 1, 8, "${...} needs quotes"),
        ("a: [x/${env:X,y}]\n", 1, 5, "${...} needs quotes"),
        ('a: ["b", ${env:X}]\n', 1, 10, "${...} needs quotes"),
        ("a: 1\nsteps:100\nb: 1\n", 2, 1, "no space after 'steps:'"),
        ("a:\n  steps:100\n  b: 1\n", 2, 3, "no space after 'steps:'"),
        ("a: b: c\n", 1, 5, "a second ': '"),
        ("a: 1\n  b: 2\n", 2, 3, "indented deeper"),
        ("a: 1\nword\nb: 2\n", 2, 1, "neither `key: value`"),
        ("a:\n    b: 1\n  c: 2\n", 3, 3, "matches no line above"),
        ("a: - b\n", 1, 4, "a list item cannot begin here"),
        ("a: 1\n- b\n", 2, 1, "follow the keys"),
        ("- b\na: 1\n", 2, 1, "follow list items"),
        ("a: @x\n", 1, 4, "cannot begin with '@'"),
        ("a: 'x\nb: 1\n", 1, 4, "quote is not closed"),
        ("a: 1\nb: 'x\nc: {d: 'y'}\n", 2, 4, "not closed in its line"),
        ('a:\n  - "x\n  - "y"\n', 2, 5, "not closed in its line"),
        ('a: "\\d"\n', 1, 6, "'\\d' is not an escape"),
        ('a: "\\U99999999"\n', 1, 7, "is not a valid character"),
        ("a: {b: 1\n", 1, 4, "bracket is not closed"),
        ("a: [1, 2\nb: 3\n", 2, 2, "expected ',' or ']'"),
        ("a: 1}\nb: ]\n", 2, 4, "has no opening bracket"),
        ("a: 'x' y\n", 1, 8, "does not continue"),
        ("a: *x\n", 1, 4, "no anchor &x"),
        ("a: *\n", 1, 4, "no name follows"),
        ("%YAML 1.1\n---\na: 1\n", 1, 1, "%YAML 1.1 is not allowed"),
        ("%YAML 3.0\n---\na: 1\n", 1, 1, "%YAML 3.0 is not allowed"),
        ("# c\n%TAG ! x\n---\na: 1\n", 2, 1, "%TAG ! x is not allowed"),
        ("a: 1\n---\nb: 2\n", 2, 1, "second document"),
        ("a: 1\n...\nb: 2\n", 3, 1, "second document"),
    ],
)
def test_syntax_errors_are_put_in_plain_words(
    text: str, line: int, column: int, words: str
) -> None:
    problem = problem_of(text)
    assert words in problem.message
    assert (problem.code, problem.origin.line, problem.origin.column) == ("syntax", line, column)


def test_the_help_for_an_unquoted_reference_shows_it_quoted() -> None:
    assert problem_of("a: {b: ${env:HOME}/x, c: 1}").hint == 'write "${env:HOME}/x" in quotes'
    assert problem_of("a: [x/${DATA}/${b.c}]").hint == 'write "x/${env:DATA}/${b.c}" in quotes'
    assert to_plain_data(read("a: ${env:HOME}/x")) == {"a": "${env:HOME}/x"}


def test_yaml_1_2_may_be_declared() -> None:
    assert to_plain_data(read("%YAML 1.2\n---\na: 1\n...\n")) == {"a": 1}


def test_all_problems_before_a_syntax_error_are_reported_with_it() -> None:
    codes = [problem.code for problem in problems_of("a: 010\na: !x 1\n2: 3\nb: 'x\n")]
    assert codes == ["ambiguous-number", "tag", "duplicate-key", "wrong-type", "syntax"]


def test_reading_ends_at_a_hundred_problems() -> None:
    assert len(problems_of("".join(f"k{i}: 010\n" for i in range(500)))) == 100


def test_pairs_of_surrogate_escapes_are_joined_and_lone_ones_refused() -> None:
    assert value_of('"\\ud83d\\ude00"') == "\U0001f600"
    assert problem_of('a: "\\ud83d"').code == "encoding"


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
DATA = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=4), DATA, max_size=4), st.sampled_from([None, 1, 2]))
def test_json_means_the_same_and_every_leaf_stands_where_it_says(
    data: dict[str, object], indent: int | None
) -> None:
    text = json.dumps(data, indent=indent, separators=(", ", ": "))
    root = read(text)
    assert json.dumps(to_plain_data(root)) == json.dumps(data)
    lines = text.split("\n")
    for path, node in iter_nodes(root):
        if not isinstance(node.value, dict | list):
            assert lines[node.origin.line - 1][
                node.origin.column - 1 : node.origin.end_column - 1
            ] == json.dumps(node.value)
        if node.key is not None:
            assert lines[node.key.line - 1][
                node.key.column - 1 : node.key.end_column - 1
            ] == json.dumps(path[-1])
