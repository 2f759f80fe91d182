"""The TOML reader means what tomli means, and knows where it says so."""

import json
import math

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.toml_spans import find_toml_spans
from titanrun.config.tree import Node, find_node, iter_nodes, to_plain_data


def read(text: str) -> Node:
    return read_source_text(SourceText("r.toml", text), "toml")


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


def marked(origin: Origin | None) -> str:
    assert origin is not None
    return origin.source.get_line(origin.line)[origin.column - 1 : origin.end_column - 1]


RECIPE = """# a comment
name = "é"  # another
[model]
flavor.size = 0x1F
"odd key" = [1, 'two', # three
  {x = 1.5}]

[[converters]]
name = 'lora'
[[converters]]
[converters.options]
text = \"\"\"
two lines\"\"\"
[a.b]
[a]
c = true
"""


def test_values_are_those_of_tomli() -> None:
    assert to_plain_data(read(RECIPE)) == tomli.loads(RECIPE)


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        (("name",), "name", '"é"'),
        (("model",), "model", "[model]"),
        (("model", "flavor"), "flavor", "flavor"),
        (("model", "flavor", "size"), "size", "0x1F"),
        (("model", "odd key"), '"odd key"', "[1, 'two', # three"),
        (("model", "odd key", 1), None, "'two'"),
        (("model", "odd key", 2), None, "{x = 1.5}"),
        (("model", "odd key", 2, "x"), "x", "1.5"),
        (("converters",), "converters", "[[converters]]"),
        (("converters", 1), None, "[[converters]]"),
        (("converters", 1, "options"), "options", "[converters.options]"),
        (("converters", 1, "options", "text"), "text", '"""'),
        (("a", "b"), "b", "[a.b]"),
        (("a",), "a", "[a]"),
    ],
)
def test_every_key_and_value_is_marked(
    path: tuple[str | int, ...], key: str | None, value: str
) -> None:
    node = find_node(read(RECIPE), path)
    assert node is not None
    assert marked(node.origin) == value
    assert (node.key and marked(node.key)) == key


def test_crlf_and_wide_characters_do_not_shift_positions() -> None:
    root = read('[s]\r\n"é" = 1 # é\r\nb = [\r\n  2,\r\n]\r\n')
    assert span(find_node(root, ("s", "é")).origin) == (2, 7, 8)
    assert span(find_node(root, ("s", "b", 0)).origin) == (4, 3, 4)


def test_infinities_are_read_and_overflows_refused() -> None:
    assert to_plain_data(read("a = -inf")) == {"a": -math.inf}
    assert problem_of("a = 1e999").code == "out-of-range"


def test_each_date_is_a_problem_at_its_place() -> None:
    first, second = problems_of("a = 1979-05-27 07:32:00\nb = [1, 07:32:00]\n")
    assert (first.code, first.path, span(first.origin)) == ("wrong-type", ("a",), (1, 5, 24))
    assert (second.path, second.hint) == (("b", 1), 'put it in quotes: "07:32:00"')


@pytest.mark.parametrize("text", ["", "# only comments\n", "\r\n\r\n"])
def test_a_text_without_values_is_empty(text: str) -> None:
    assert problem_of(text).code == "empty"


@pytest.mark.parametrize(
    ("text", "path", "place", "first"),
    [
        ("a = 1\na = 2", ("a",), (2, 1, 2), (1, 1, 2)),
        ("[a]\n[b]\n[a]", ("a",), (3, 2, 3), (1, 2, 3)),
        ("a = {x = 1, x = 2}", ("a", "x"), (1, 13, 14), (1, 6, 7)),
        ("[[a]]\nb = 1\n[[a]]\nb = 1\nb = 2", ("a", 1, "b"), (5, 1, 2), (4, 1, 2)),
    ],
)
def test_a_duplicate_key_names_the_first_place(
    text: str, path: tuple[object, ...], place: object, first: object
) -> None:
    problem = problem_of(text)
    assert (problem.code, problem.path, span(problem.origin), span(problem.related[0].origin)) == (
        "duplicate-key",
        path,
        place,
        first,
    )


def test_every_duplicate_key_is_told_but_no_more_than_anyone_reads() -> None:
    def lines_of(count: int) -> list[int]:
        repeated = "".join(f"k{number} = 1\nk{number} = 2\n" for number in range(count))
        return [problem.origin.line for problem in problems_of(repeated) if problem.origin]

    assert lines_of(3) == [2, 4, 6]
    assert lines_of(150) == list(range(2, 202, 2))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = {x = 1}\na.y = 2", 2),
        ("a.b = 1\n[a]\nc = 1", 2),
        ("[a.b]\n[a]\nb.c = 1", 3),
        ("a = [1]\n[[a]]", 2),
        ("a = 1\n[a.b]", 2),
    ],
)
def test_a_table_that_is_closed_cannot_go_on(text: str, line: int) -> None:
    problem = problem_of(text)
    assert (problem.code, problem.origin.line) == ("duplicate-key", line)


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("a = lora", 5, "lora is not in quotes"),
        ("a = True", 5, "True is not TOML"),
        ("a = .5", 5, ".5 is not TOML"),
        ("a = null", 5, "null is not TOML"),
        ("a = 10min", 5, "10min is not in quotes"),
        ("a = ${env:X}", 5, "${env:X} is not in quotes"),
        ("a =", 4, "a value is missing"),
        ("a: 1", 2, "expected '='"),
        ("a = [1 2]", 8, "expected ',' or ']'"),
        ("a = {b=1 c=2}", 10, "expected ',' or '}'"),
        ("a = 1 b = 2", 7, "expected the end of the line"),
        ('a = "x', 5, "quote is not closed"),
        ('a = "x\n"', 5, "not closed on its line"),
        ("a = '''x", 5, "quote is not closed"),
        ('a = "\\d"', 8, "not an escape"),
        ("[a", 3, "end of the table's name"),
        ("= 1", 1, "expected a key"),
        ("a = 1\r", 6, "expected the end of the line"),
    ],
)
def test_syntax_errors_are_put_in_plain_words(text: str, column: int, words: str) -> None:
    problem = problem_of(text)
    assert words in problem.message
    assert (problem.code, problem.origin.line, problem.origin.column) == ("syntax", 1, column)


@pytest.mark.parametrize(("line", "column"), [("a = 1 b", 7), ("a =", 4)])
@pytest.mark.parametrize("num_lines", [0, 1, 10])
def test_an_error_has_its_place_in_a_file_of_windows_too(
    num_lines: int, line: str, column: int
) -> None:
    unix = "".join(f"x{number} = 1\n" for number in range(num_lines)) + f"{line}\nc = 2\n"
    for text in (unix, unix.replace("\n", "\r\n")):
        origin = problem_of(text).origin
        assert origin is not None and (origin.line, origin.column) == (num_lines + 1, column)


@pytest.mark.parametrize("text", ["a = 010", "a = [1, 010]", "a = {b = -010}"])
def test_a_leading_zero_is_ambiguous_here_too(text: str) -> None:
    problem = problem_of(text)
    assert (problem.code, marked(problem.origin)) == (
        "ambiguous-number",
        text.rstrip("]}").split()[-1],
    )


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 64 + "]" * 64,
        "a = " + "[" * 100_000,
        ".".join("a" * 65) + " = 1",
        f"[{'.'.join('a' * 500_000)}]",
        "a = [" + "1, " * 9999 + "]",
        "[[a]]\n" * 10_000,
        "a = " + "9" * 4301,
        "a = 0x" + "f" * 4000,
    ],
)
def test_limits_are_those_of_yaml(text: str) -> None:
    assert problem_of(text).code == "limit"


def test_what_is_within_the_limits_is_read() -> None:
    assert read("a = " + "[" * 63 + "1" + "]" * 63)
    assert len(read("a = [" + "1, " * 9998 + "]").value["a"].value) == 9998


KEYS = st.sampled_from(["a", "b", "1", '"q u"', "'l.it'", '"\\u00e9"', '""']) | st.text(
    "cd-_", min_size=1, max_size=2
)
SPACES = st.sampled_from(["", " ", "\t "])
GAPS = st.sampled_from(["", " ", "\n", "\r\n  ", " # c ] }\n"])
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=4)
QUOTED = TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)) | st.sampled_from(
    [
        "'x # ]'",
        "''",
        '""',
        '"""a\n"b""c"""""',
        "'''\nd'''''",
        '"""\\"""""',
        "''''''",
        '""""x"""',
        "'''it's '' so'''",
    ]
)
NUMBERS = st.sampled_from(
    [
        "0",
        "-1",
        "1_000",
        "0x1F",
        "0b1",
        "0o7",
        "3e-4",
        "-inf",
        "nan",
        "1.5",
        "1979-05-27T07:32:00Z",
        "1979-05-27 07:32:00.5",
        "07:32:00",
    ]
)
DOTTED = st.lists(st.tuples(SPACES, KEYS, SPACES).map("".join), min_size=1, max_size=3).map(
    ".".join
)


def arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    items = st.lists(st.tuples(GAPS, values, GAPS).map("".join), max_size=3).map(",".join)
    return st.tuples(items, st.sampled_from(["", ","]), GAPS).map(
        lambda parts: f"[{parts[0]}{parts[1] if parts[0] else ''}{parts[2]}]"
    )


def inline_tables(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(DOTTED, SPACES, values, SPACES).map(
        lambda parts: f"{parts[0]}={parts[1]}{parts[2]}{parts[3]}"
    )
    return st.lists(pairs, max_size=2).map(lambda parts: "{" + ",".join(parts) + "}")


VALUES = st.recursive(
    QUOTED | NUMBERS | st.sampled_from(["true", "false"]),
    lambda inner: arrays(inner) | inline_tables(inner),
    max_leaves=5,
)
PAIRS = st.tuples(SPACES, DOTTED, SPACES, VALUES, SPACES).map(
    lambda parts: f"{parts[0]}{parts[1]}={parts[2]}{parts[3]}{parts[4]}"
)
STATEMENTS = (
    PAIRS
    | DOTTED.map("[{}]".format)
    | DOTTED.map("[[{}]]".format)
    | st.sampled_from(["", "# comment", "  "])
)


def valid_part(statements: list[str], line_break: str) -> str:
    """The statements that tomli accepts after those before them."""
    text = ""
    for statement in statements:
        longer = f"{text}{statement}{line_break}"
        try:
            tomli.loads(longer)
        except tomli.TOMLDecodeError:
            continue
        text = longer
    return text


def paths(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    """The path of every value below the top."""
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return {path} - {()} | {
        inner for key, child in children for inner in paths(child, (*path, key))
    }


def check_positions(text: str) -> None:
    data = tomli.loads(text)
    spots = find_toml_spans(text)
    assert set(spots.by_path) == paths(data)
    assert not spots.repeated_keys
    for path, spot in spots.by_path.items():
        value = data
        for step in path:
            value = value[step]
        if not isinstance(value, dict | list):
            assert repr(tomli.loads("x = " + text[slice(*spot.value)])["x"]) == repr(value)
        if spot.key is not None:
            assert next(iter(tomli.loads(text[slice(*spot.key)] + " = 1"))) == path[-1]


@settings(max_examples=150, deadline=None)
@given(st.lists(STATEMENTS, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_exactly_what_tomli_reads_has_a_position(statements: list[str], line_break: str) -> None:
    check_positions(valid_part(statements, line_break))


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(st.lists(STATEMENTS, max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_exactly_what_tomli_reads_has_a_position_in_many_texts(
    statements: list[str], line_break: str
) -> None:
    check_positions(valid_part(statements, line_break))


def test_the_root_stands_at_its_first_line() -> None:
    assert span(read("# c\n\na = 1\nb = 2\n").origin) == (3, 1, 6)
    assert len(list(iter_nodes(read(RECIPE)))) == len(paths(tomli.loads(RECIPE))) + 1


def test_the_length_of_a_number_is_told() -> None:
    problem = problem_of("a = " + "9" * 4301)
    assert problem.message == "a number of 4,301 characters is longer than 4,300"
