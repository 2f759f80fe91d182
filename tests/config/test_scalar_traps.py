"""Words that other readers of YAML and TOML take for something else: each is read right, or refused
with what to write instead."""

import shlex
from typing import ClassVar, Literal

import pytest

from titanrun.config.apply_overrides import apply_overrides, parse_overrides
from titanrun.config.base import ComponentConfig, Config
from titanrun.config.fields import bookkeeping, component, numerics, section
from titanrun.config.problems import Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.tree import Node
from titanrun.config.types import OrAuto, PositiveInt
from titanrun.config.validate_tree import validate_tree


class Trap(ComponentConfig):
    slot: ClassVar = "trap"
    is_slot: ClassVar = True


class Bear(Trap):
    name: Literal["bear"] = numerics("bear")
    builds: ClassVar = "builtins:dict"


class Inner(Config):
    whole: int = numerics(1)


class Model(Config):
    version: Literal[1] = bookkeeping(1)
    whole: int = numerics(1)
    auto: OrAuto[PositiveInt] = numerics("auto")
    number: float = numerics(1.0)
    flag: bool = numerics(False)
    text: str = bookkeeping("")
    maybe: float | None = numerics(None)
    words: tuple[str, ...] = numerics(())
    inner: Inner = section(Inner)
    traps: tuple[Trap, ...] = component(())


def tree(language: str, field: str, word: str) -> Node:
    """A text with one value, in a file or as an override."""
    if language == "override":
        return apply_overrides(
            read_source_text(SourceText("r.yaml", "version: 1\n"), "yaml"),
            parse_overrides([f"{field}={word}"]),
        )
    line = f"{field}: {word}\n" if language == "yaml" else f"{field} = {word}\n"
    return read_source_text(SourceText(f"r.{language}", line), language)  # type: ignore[arg-type]


def problem(language: str, field: str, word: str) -> Problem:
    """The one thing that is wrong with the word."""
    try:
        root = tree(language, field, word)
    except ProblemsFound as found:
        (only,) = found.problems
        return only
    (only,) = validate_tree(Model, root).problems
    return only


def value(language: str, field: str, word: str) -> object:
    """What the word means."""
    checked = validate_tree(Model, tree(language, field, word))
    assert checked.problems == ()
    return getattr(checked.config, field)


def marked(problem: Problem) -> str:
    assert problem.origin is not None
    return problem.origin.source.get_line(problem.origin.line)[
        problem.origin.column - 1 : problem.origin.end_column - 1
    ]


READ_IN_YAML = [
    ("number", "3e-4", 3e-4),
    ("number", "3E-4", 3e-4),
    ("number", "1", 1.0),
    ("number", "0x10", 16.0),
    ("whole", "1e6", 1_000_000),
    ("whole", "0x1F", 31),
    ("whole", "0o17", 15),
    ("whole", "+5", 5),
    ("whole", "9223372036854775807", 2**63 - 1),
    ("flag", "true", True),
    ("flag", "False", False),
    ("text", "on", "on"),
    ("text", "2020-01-01", "2020-01-01"),
    ("text", "1_000", "1_000"),
    ("text", "1:30:00", "1:30:00"),
    ("text", "4k", "4k"),
    ("text", "'null'", "null"),
    ("maybe", "null", None),
    ("maybe", "~", None),
    ("auto", "auto", "auto"),
]


@pytest.mark.parametrize("language", ["yaml", "override"])
@pytest.mark.parametrize(("field", "word", "meaning"), READ_IN_YAML, ids=str)
def test_a_word_means_what_yaml_1_2_says(
    language: str, field: str, word: str, meaning: object
) -> None:
    got = value(language, field, word)
    assert (got, type(got)) == (meaning, type(meaning))


@pytest.mark.parametrize(
    ("field", "word", "meaning"),
    [
        ("number", "3e-4", 3e-4),
        ("number", "1", 1.0),
        ("whole", "1e6", 1_000_000),
        ("whole", "0x1F", 31),
        ("whole", "0o17", 15),
        ("whole", "1_000", 1000),
        ("flag", "true", True),
        ("maybe", '"null"', None),
        ("auto", '"auto"', "auto"),
        ("text", '"on"', "on"),
    ],
    ids=str,
)
def test_a_word_means_what_toml_says(field: str, word: str, meaning: object) -> None:
    got = value("toml", field, word)
    assert (got, type(got)) == (meaning, type(meaning))


WHOLE, NUMBER = (f"write a number; the default is {default}" for default in ("1", "1.0"))
REFUSED_IN_YAML = [
    ("whole", "010", "ambiguous-number", "write 10, or 0o10 if octal is meant"),
    ("number", "-010", "ambiguous-number", "write -10, or -8 if octal is meant"),
    ("whole", "1_000", "ambiguous-number", "write 1000"),
    ("number", "1_0.5", "ambiguous-number", "write 10.5"),
    ("number", "1_0e3", "ambiguous-number", "write 10e3"),
    ("whole", "1:30:00", "ambiguous-number", "write 5400 if sixties are meant"),
    ("whole", "4k", "ambiguous-number", "write 4096 or 4000"),
    ("whole", "3M", "ambiguous-number", "write 3145728 or 3000000"),
    ("whole", "2b", "ambiguous-number", "write 2147483648 or 2000000000"),
    ("whole", "2G", "ambiguous-number", "write 2147483648 or 2000000000"),
    ("auto", "4k", "ambiguous-number", "write 4096 or 4000"),
    ("whole", "\uff11\uff10", "ambiguous-number", "write 10"),
    ("whole", "'10'", "wrong-type", "write 10 without quotes"),
    ("auto", "'10'", "wrong-type", "write 10 without quotes"),
    ("number", "' 3e-4 '", "wrong-type", "write 3e-4 without quotes"),
    ("number", "'.5'", "wrong-type", "write 0.5 without quotes"),
    ("number", "'5.'", "wrong-type", "write 5.0 without quotes"),
    ("whole", "'0x10'", "wrong-type", "write 0x10 without quotes"),
    ("whole", "'010'", "ambiguous-number", "write 10, or 0o10 if octal is meant"),
    ("whole", "'08'", "ambiguous-number", "write 8"),
    ("whole", "0_10", "ambiguous-number", "write 10, or 0o10 if octal is meant"),
    ("flag", "on", "wrong-type", "write true"),
    ("flag", "Off", "wrong-type", "write false"),
    ("flag", "yes", "wrong-type", "write true"),
    ("flag", "no", "wrong-type", "write false"),
    ("flag", "y", "wrong-type", "write true"),
    ("flag", "1", "wrong-type", "write true"),
    ("flag", "0", "wrong-type", "write false"),
    ("flag", "'true'", "wrong-type", "write true"),
    ("flag", "null", "wrong-type", "write a value, or leave it out: the default is false"),
    ("whole", "true", "wrong-type", "write a number; the default is 1"),
    ("number", "true", "wrong-type", "write a number; the default is 1.0"),
    ("whole", "1.5", "wrong-type", "write 1 or 2"),
    ("whole", "0.5", "wrong-type", "write 1"),
    ("whole", "-1.5", "wrong-type", None),
    ("whole", ".inf", "wrong-type", None),
    ("whole", "3 steps", "wrong-type", "write 3"),
    ("whole", "two", "wrong-type", "write 2"),
    ("whole", "5 minutes", "wrong-type", WHOLE),
    ("whole", "null", "wrong-type", "write a value, or leave it out: the default is 1"),
    ("whole", "9223372036854775808", "wrong-type", None),
    ("number", ".nan", "out-of-range", None),
    ("number", "-.inf", "out-of-range", None),
    ("number", "nan", "out-of-range", NUMBER),
    ("number", "1e999", "out-of-range", None),
    ("number", "2020-01-01", "wrong-type", NUMBER),
    ("text", "10", "wrong-type", 'write "10"'),
    ("text", "true", "wrong-type", 'write "true"'),
    ("text", "null", "wrong-type", 'write a value, or leave it out: the default is ""'),
    ("maybe", "'null'", "wrong-type", "write null without quotes"),
    ("maybe", "None", "wrong-type", "write null"),
    ("maybe", "off", "wrong-type", "write null"),
    ("auto", "-1", "out-of-range", "write auto"),
    ("number", "0,001", "wrong-type", "write 0.001"),
    ("number", "3*10^-4", "wrong-type", "write 3e-4"),
    ("number", "10%", "wrong-type", "write 0.1"),
    ("whole", "10%", "wrong-type", WHOLE),
    ("whole", "200%", "wrong-type", "write 2"),
    ("whole", "10^-2", "wrong-type", WHOLE),
    ("whole", "10^2", "wrong-type", "write 1e2"),
    ("whole", "[abc]", "wrong-type", None),
    ("version", "true", "wrong-type", None),
    ("version", "1.0", "wrong-type", None),
    ("number", "[0x10]", "wrong-type", "write 0x10"),
    ("words", "one", "wrong-type", "write [one]"),
    ("inner", "whole:5", "wrong-type", "write a space after the colon: whole: 5"),
    ("traps", "[{name:bear}]", "unknown-key", "write a space after the colon: name: bear"),
    ("traps", "[ber]", "unknown-name", "did you mean 'bear'?"),
]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("text=10", "write 'text=\"10\"'"),
        ("text=true", "write 'text=\"true\"'"),
        ("text=null", 'write a value, or leave it out: the default is ""'),
        ("inner=5", "set its keys: inner.KEY=VALUE; keys: whole"),
        ("--inner.whole", "write --inner.whole=VALUE"),
    ],
)
def test_the_help_about_an_override_is_what_to_type(word: str, hint: str) -> None:
    start = read_source_text(SourceText("r.yaml", "version: 1\n"), "yaml")
    (found,) = validate_tree(Model, apply_overrides(start, parse_overrides([word]))).problems
    assert found.hint == hint
    typed = shlex.split(hint.removeprefix("write "))[0]
    if "text=" in hint:
        root = apply_overrides(start, parse_overrides([typed]))
        assert validate_tree(Model, root).problems == ()


@pytest.mark.parametrize("language", ["yaml", "override"])
@pytest.mark.parametrize(("field", "word", "code", "hint"), REFUSED_IN_YAML, ids=str)
def test_nothing_is_coerced_and_the_fix_is_told(
    language: str, field: str, word: str, code: str, hint: str | None
) -> None:
    if language == "override" and field in ("words", "text"):
        return  # words become a list there, and quotes are the shell's
    found = problem(language, field, word)
    assert (found.code, found.hint) == (code, hint)
    assert marked(found) in word


@pytest.mark.parametrize(
    ("field", "word", "code", "hint"),
    [
        ("whole", "010", "ambiguous-number", "write 10, or 0o10 if octal is meant"),
        (
            "whole",
            "1:30:00",
            "syntax",
            'write "1:30:00" for text; for a number, 5400 if sixties are meant',
        ),
        ("whole", "4k", "syntax", 'write "4k" for text; for a number, 4096 or 4000'),
        ("whole", '"4k"', "ambiguous-number", "write 4096 or 4000"),
        ("whole", '"1_000"', "ambiguous-number", "write 1000"),
        ("whole", '"10"', "wrong-type", "write 10 without quotes"),
        ("flag", "on", "syntax", 'write "on" for text, true for a boolean'),
        ("flag", "No", "syntax", 'write "No" for text, false for a boolean'),
        ("flag", "True", "syntax", "write true"),
        ("flag", '"yes"', "wrong-type", "write true"),
        ("flag", "1", "wrong-type", "write true"),
        ("text", "10", "wrong-type", 'write "10"'),
        ("text", "word", "syntax", 'write "word"'),
        ("number", "nan", "out-of-range", None),
        ("number", "1e999", "out-of-range", None),
        ("number", ".5", "syntax", "write 0.5"),
        ("number", "2020-01-01", "wrong-type", 'put it in quotes: "2020-01-01"'),
        ("maybe", "null", "syntax", 'write "null" in quotes'),
        ("version", "true", "wrong-type", None),
        ("whole", "9223372036854775808", "wrong-type", None),
    ],
    ids=str,
)
def test_toml_is_as_strict(field: str, word: str, code: str, hint: str | None) -> None:
    found = problem("toml", field, word)
    assert (found.code, found.hint) == (code, hint)
    assert (str(found.origin), marked(found)) == (f"r.toml:1:{len(field) + 4}", word)


def test_the_text_null_in_toml_is_refused_where_null_is() -> None:
    found = problem("toml", "whole", '"null"')
    assert (
        found.hint
        == 'TOML has no null, so the text "null" represents it, but this field does not accept null'
    )


@pytest.mark.parametrize(
    ("language", "text"),
    [("yaml", "inner: {whole: '1'}\nflag: on\n"), ("toml", 'flag = "on"\ninner.whole = "1"\n')],
)
def test_every_problem_of_a_text_is_told_at_once(language: str, text: str) -> None:
    checked = validate_tree(Model, read_source_text(SourceText("r", text), language))  # type: ignore[arg-type]
    assert {found.path for found in checked.problems} == {("flag",), ("inner", "whole")}


def test_words_without_meaning_hide_nothing_else_in_toml() -> None:
    text = (
        "whole = 010\ntext = fast\nwords = ['a', b, 4k]\nmaybe = ${x}\nflag = "
        "true\n[inner]\nwhole = 1979-05-27\n"
    )
    with pytest.raises(ProblemsFound) as found:
        read_source_text(SourceText("r.toml", text), "toml")
    told = [(each.path, str(each.origin), marked(each)) for each in found.value.problems]
    assert told == [
        (("whole",), "r.toml:1:9", "010"),
        (("text",), "r.toml:2:8", "fast"),
        (("words", 1), "r.toml:3:15", "b"),
        (("words", 2), "r.toml:3:18", "4k"),
        (("maybe",), "r.toml:4:9", "${x}"),
        (("inner", "whole"), "r.toml:7:9", "1979-05-27"),
    ]


def test_a_value_that_is_missing_ends_the_reading_of_toml_after_what_came_before() -> None:
    with pytest.raises(ProblemsFound) as found:
        read_source_text(SourceText("r.toml", "whole = 010\ntext =\nflag = on\n"), "toml")
    assert [each.message for each in found.value.problems] == [
        "010 can be decimal or octal",
        "a value is missing",
    ]


def test_an_alias_is_shown_with_the_place_it_is_used_at() -> None:
    root = read_source_text(
        SourceText("r.yaml", "x-a: &a fast\nnumber: *a\nx-b: &b {whole: fast}\ninner: {<<: *b}\n"),
        "yaml",
    )
    del root.value["x-a"], root.value["x-b"]  # type: ignore[union-attr]
    first, second = validate_tree(Model, root).problems
    assert (str(first.origin), str(first.related[0].origin)) == ("r.yaml:1:9", "r.yaml:2:9")
    assert first.related[0].message == "used here as number"
    assert (str(second.origin), str(second.related[0].origin)) == ("r.yaml:3:17", "r.yaml:4:9")
