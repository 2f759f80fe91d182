"""The front door: files, encodings, override values, and input made to break it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.compose import compose
from titanrun.config.encoding import build_invisible_character_problem, decode_source
from titanrun.config.limits import MAX_BYTES
from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source, read_source_text, read_value_text
from titanrun.config.tree import Node, iter_nodes, to_plain_data


def problem_of_file(path: Path | str, **options: object) -> Problem:
    with pytest.raises(ProblemsFound) as found:
        read_source(str(path), **options)
    [problem] = found.value.problems
    return problem


def problem_of_bytes(folder: Path, data: bytes, name: str = "r.yaml") -> Problem:
    (folder / name).write_bytes(data)
    return problem_of_file(folder / name)


def override(text: str) -> Node:
    """The value of an override, which begins behind its first `=`."""
    return read_value_text(
        SourceText("<override 1>", text, kind="override"), start=text.index("=") + 1
    )


def span(origin: Origin | None) -> tuple[int, int, int]:
    assert origin is not None
    return origin.line, origin.column, origin.end_column


@pytest.mark.parametrize(
    ("name", "text"),
    [("r.yaml", "a: 1"), ("r.yml", "a: 1"), ("R.YAML", "a: 1"), ("r.toml", "a = 1")],
)
def test_the_suffix_decides_the_format(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    root = read_source(str(tmp_path / name))
    assert to_plain_data(root) == {"a": 1}
    assert root.origin.source.name == str(tmp_path / name)


def test_a_file_may_have_as_many_bytes_as_the_limit_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"a: 1\n".ljust(MAX_BYTES, b"#"))
    assert to_plain_data(read_source(str(path))) == {"a": 1}
    path.write_bytes(b"a: 1\n".ljust(MAX_BYTES + 1, b"#"))
    with pytest.raises(ProblemsFound) as found:
        read_source(str(path))
    assert [problem.code for problem in found.value.problems] == ["limit"]


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes("\ufeffa: é\r\nb: 2\r\n".encode())
    root = read_source(str(path))
    assert to_plain_data(root) == {"a": "é", "b": 2}
    assert span(root.value["a"].key) == (1, 1, 2)


def test_a_source_is_called_as_the_caller_wants_and_knows_who_includes_it(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("a: 1")
    place = Origin(SourceText("r.yaml", "extends: base.yaml"), 1, 10, 19)
    root = read_source(str(tmp_path / "base.yaml"), included_from=place, name="base.yaml")
    assert (root.origin.source.name, root.origin.source.included_from) == ("base.yaml", place)


def test_a_missing_file_is_reported_where_it_is_named_with_similar_names(tmp_path: Path) -> None:
    (tmp_path / "llama3_debug.yaml").write_text("a: 1")
    (tmp_path / "llama3_debug.txt").write_text("a: 1")
    place = Origin(SourceText(str(tmp_path / "r.yaml"), "extends: x"), 1, 10, 11)
    problem = problem_of_file(tmp_path / "lama3_debug.yaml", included_from=place)
    assert (problem.code, problem.origin) == ("file", place)
    assert problem.hint == "did you mean 'llama3_debug.yaml'?"
    assert (
        problem_of_file(tmp_path / "no" / "r.yaml").hint
        == f"folder {tmp_path / 'no'} does not exist either"
    )
    assert problem_of_file(tmp_path / "zzz.yaml").hint is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("bse.yaml", "base.yaml"),
        ("../pats/base.yaml", "base.yaml"),
        ("deep/bse.yaml", "deep/base.yaml"),
        ("../tpo.yaml", "../top.yaml"),
        ("{}/parts/bse.yaml", "{}/parts/base.yaml"),
    ],
)
def test_a_similar_file_is_written_as_the_file_that_names_it_must_write_it(
    written: str, meant: str, tmp_path: Path
) -> None:
    """It holds wherever the command runs: the folder of this test is not that of the recipe."""
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    for name in ("top.yaml", "parts/base.yaml", "parts/deep/base.yaml"):
        (tmp_path / name).write_text("a: 1")
    written, meant = written.format(tmp_path), meant.format(tmp_path)
    file = tmp_path / "parts" / "mine.yaml"
    file.write_text(f"extends: {written}\n")
    with pytest.raises(ProblemsFound) as found:
        compose(str(file))
    (problem,) = found.value.problems
    assert problem.hint == f"did you mean '{meant}'?"
    file.write_text(f"extends: {meant}\n")
    assert to_plain_data(compose(str(file))) == {"a": 1}


def test_what_is_no_readable_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    (tmp_path / "r.txt").write_text("a: 1")
    names = [
        "folder.yaml",
        "pipe.yaml",
        "loop.yaml",
        "folder.yaml/r.yaml",
        "r.txt",
        "x\0.yaml",
        "n" * 300 + ".yaml",
    ]
    assert {problem_of_file(tmp_path / name).code for name in names} == {"file"}
    assert "is a directory" in problem_of_file(tmp_path / "folder.yaml").message
    assert problem_of_file(tmp_path / "r.txt").hint == "name it .yaml, .yml or .toml"


@pytest.mark.parametrize("name", ["r.yaml", "r.toml"])
@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        (b"# \xc3\xa9\na\xff: 1", (2, 2), "byte 0xff is not UTF-8"),
        ("a: 1".encode("utf-16"), (1, 1), "UTF-16"),
        ("a: 1".encode("utf-16-le"), (1, 1), "UTF-16"),
        ("a: 1".encode("utf-16-be"), (1, 1), "UTF-16"),
        (b"# \x00", (1, 3), "control character U+0000"),
        (b"#\r\n# \x07", (2, 3), "control character U+0007"),
        ("# \x85".encode(), (1, 3), "U+0085"),
        ("# \u2028".encode(), (1, 3), "line separator U+2028"),
        ("# \ufeff".encode(), (1, 3), "zero width no-break space U+FEFF"),
        (b"# \xed\xa0\x80", (1, 3), "byte 0xed is not UTF-8"),
    ],
)
def test_only_visible_utf_8_is_accepted(
    tmp_path: Path, name: str, data: bytes, place: tuple[int, int], words: str
) -> None:
    problem = problem_of_bytes(tmp_path, data, name)
    assert problem.code == "encoding"
    assert words in problem.message
    assert (problem.origin.line, problem.origin.column) == place


def test_lone_surrogates_of_a_command_line_are_refused() -> None:
    for text, words in (("a=\udcff", "byte 0xff"), ("a=\ud800", "surrogate")):
        with pytest.raises(ProblemsFound, match=words) as found:
            override(text)
        assert (found.value.problems[0].code, span(found.value.problems[0].origin)) == (
            "encoding",
            (1, 3, 4),
        )


def test_a_file_over_one_mebibyte_is_refused(tmp_path: Path) -> None:
    assert problem_of_bytes(tmp_path, b"a: 1\n" + b"#" * (1024 * 1024)).code == "limit"
    with pytest.raises(ProblemsFound, match="1 MiB"):
        read_source_text(SourceText("r.yaml", "#" * (1024 * 1024 + 1)), "yaml")


@pytest.mark.parametrize(
    ("text", "value", "place"),
    [
        ("optimizer.lr=3e-4", 3e-4, (1, 14, 18)),
        ("a=[x, 'y z']", ["x", "y z"], (1, 3, 13)),
        ("a= {name: lora}", {"name": "lora"}, (1, 4, 16)),
        ("a='010'", "010", (1, 3, 8)),
        ("a=é b ", "é b", (1, 3, 6)),
        ("a=http://x#y", "http://x#y", (1, 3, 13)),
        ("a=b: 1", {"b": 1}, (1, 3, 7)),
        ("a=${env:X}", "${env:X}", (1, 3, 11)),
        ("a=", None, (1, 1, 3)),
        ("a= ", None, (1, 1, 3)),
    ],
)
def test_an_override_is_one_yaml_value_with_columns_of_the_argument(
    text: str, value: object, place: tuple[int, int, int]
) -> None:
    node = override(text)
    assert (to_plain_data(node), span(node.origin)) == (value, place)


def test_values_inside_of_an_override_have_columns_of_the_argument() -> None:
    node = override("a={b: [1, 2]}")
    assert span(node.value["b"].key) == (1, 4, 5)
    assert span(node.value["b"].value[1].origin) == (1, 11, 12)


@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("a=010", "ambiguous-number", 3),
        ("a=!x 1", "tag", 3),
        ("a=*.bias", "syntax", 3),
        ("a={b: ${x}}", "syntax", 7),
        ("a=[1", "syntax", 3),
        ("a=x #y", "syntax", 5),
        ("a=#fff", "syntax", 3),
        ("a=@x", "syntax", 3),
        ("a=b: c: d", "syntax", 7),
        ("a=%x", "syntax", 3),
    ],
)
def test_problems_of_an_override_point_into_the_argument(text: str, code: str, column: int) -> None:
    with pytest.raises(ProblemsFound) as found:
        override(text)
    [problem] = found.value.problems
    assert (problem.code, problem.origin.line, problem.origin.column) == (code, 1, column)


def test_reading_needs_neither_pydantic_nor_torch() -> None:
    script = (
        "import sys, titanrun.config.read_source; print([name for name in ('pydantic', 'torch', "
        "'numpy', 'tomli') if name in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


YAML = [
    "a",
    "b1",
    "key: ",
    "k: ",
    ": ",
    ":",
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "-",
    " ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "#",
    " # c",
    '"',
    "'",
    "&x ",
    "*x",
]
YAML += [
    "!t ",
    "!!str ",
    "!e!f ",
    "|",
    ">",
    "|2",
    "?",
    "? ",
    "...",
    "---",
    "%YAML 1.1\n",
    "%TAG ! x\n",
    "\t",
    "\r\n",
    "\r",
    "010",
    "3e-4",
    "\n- ",
    "<<: ",
]
YAML += [
    "${x}",
    "é",
    "@",
    "%",
    "\\",
    "\\ud800",
    "\\u00",
    "!<",
    "~",
    "\\U99999999",
    "\u00a0",
    "true: ",
    "1e999",
    "!%25zz ",
    "\u200b",
    "9" * 4400,
    "\x00",
]
TOML = [
    "a",
    "b",
    ".",
    "a.b",
    "=",
    " = ",
    "1",
    '"x"',
    "'y'",
    '"""',
    "'''",
    "[",
    "[[",
    "]",
    "]]",
    "{",
    "}",
    ",",
    "\n",
    "\r\n",
    "#c\n",
    "true",
    "inf",
    "nan",
]
TOML += [
    "2020-01-01",
    "12:00",
    "010",
    "1e999",
    "-",
    "_",
    '"',
    "\\",
    "\\u00e9",
    " ",
    "\t",
    "\r",
    "[a]\n",
    "[a.b]\n",
    "[[a]]\n",
    "a=1\n",
    "b={x=1}\n",
    "9" * 4400,
]


def pieces(fragments: list[str]) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(fragments), max_size=25).map(
        lambda parts: "".join(parts).encode()
    )


HOSTILE = st.binary(max_size=60) | pieces(YAML) | pieces(TOML)


def check_survival(data: bytes) -> None:
    """Whatever the bytes are: a tree whose places lie inside of the text, or problems."""
    for read in (
        lambda: read_source_text(decode_source(data, "r.yaml"), "yaml"),
        lambda: read_source_text(decode_source(data, "r.toml"), "toml"),
        lambda: read_value_text(
            SourceText("<override 1>", os.fsdecode(data), kind="override"),
            start=min(3, len(os.fsdecode(data))),
        ),
    ):
        try:
            root = read()
        except ProblemsFound as found:
            assert found.problems
            assert all(problem.origin is not None and problem.message for problem in found.problems)
            continue
        for _, node in iter_nodes(root):
            assert (
                1
                <= node.origin.column
                <= node.origin.end_column
                <= len(node.origin.source.get_line(node.origin.line)) + 1
            )


@settings(max_examples=200, deadline=None)
@given(HOSTILE)
def test_no_input_breaks_the_readers(data: bytes) -> None:
    check_survival(data)


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None)
@given(HOSTILE)
def test_no_input_breaks_the_readers_in_many_tries(data: bytes) -> None:
    check_survival(data)


def test_a_byte_and_half_of_a_pair_are_told_apart() -> None:
    origin = Origin(SourceText("x.yaml", "x"), 1, 1, 2)
    messages = {
        number: build_invisible_character_problem(chr(number), origin).message
        for number in (0xDC7F, 0xDC80, 0xDCFF, 0xDD00)
    }
    assert messages[0xDC80] == "byte 0x80 is not UTF-8"
    assert messages[0xDCFF] == "byte 0xff is not UTF-8"
    assert "is not UTF-8" not in messages[0xDC7F] + messages[0xDD00]
