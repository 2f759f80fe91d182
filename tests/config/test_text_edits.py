"""Edits of one place in a file."""

from typing import Literal

import pytest

from titanrun.config.problems import Fix, Origin, SourceText
from titanrun.config.text_edits import (
    apply_text_edits,
    build_quote_fix,
    build_unquote_fix,
    build_word_fix,
    find_text_at,
)


def origin(line: str, text: str, *, kind: Literal["file", "override"] = "file") -> Origin:
    """Where the last `text` in a line is."""
    column = line.rindex(text) + 1
    return Origin(SourceText("r.yaml", f"first: 1\n{line}\n", kind), 2, column, column + len(text))


@pytest.mark.parametrize(
    ("line", "text", "found"),
    [
        ("a: wrod", "wrod", "wrod"),
        ("{a: b, c: 'wrod'}", "'wrod'", "'wrod'"),
        # other places share the value of an anchor, and a tag decides what it is
        ("a: &x wrod", "wrod", None),
        ("a: &x   wrod", "wrod", None),
        ("a: !!str wrod", "wrod", None),
        # an anchor of another value
        ("{a: &x b, c: wrod}", "wrod", "wrod"),
        ("[&x b, wrod]", "wrod", "wrod"),
    ],
)
def test_the_text_of_a_place_is_what_may_be_replaced(
    line: str, text: str, found: str | None
) -> None:
    assert find_text_at(origin(line, text)) == found
    assert find_text_at(origin(line, text, kind="override")) is None


def test_a_word_keeps_its_quotes() -> None:
    for quote in ("", "'", '"'):
        place = origin(f"a: {quote}wrod{quote}", f"{quote}wrod{quote}")
        fix = build_word_fix(place, "wrod", "word")
        assert fix is not None and (fix.origin, fix.replacement) == (place, f"{quote}word{quote}")
    place = origin("a: wrod", "wrod")
    assert build_word_fix(place, "other", "word") is None
    assert build_word_fix(place, "wrod", "two words") is None
    assert build_word_fix(None, "wrod", "word") is None


def test_quotes_come_off_numbers_and_switches_only_and_go_on_plain_text() -> None:
    for written, meant in (("3", "3"), ("on", "true"), ("off", "false"), ("1.5e-3", "1.5e-3")):
        for text in (written, f"'{written}'", f'"{written}"'):
            fix = build_unquote_fix(origin(f"a: {text}", text), written, meant)
            assert fix is not None and fix.replacement == meant
    assert build_unquote_fix(origin("a: '08'", "'08'"), "08", "08") is None
    assert build_unquote_fix(origin("a: 'x'", "'x'"), "3", "3") is None
    fix = build_quote_fix(origin("a: 1.50", "1.50"))
    assert fix is not None and fix.replacement == '"1.50"'
    assert build_quote_fix(origin("a: [1]", "[1]")) is None


def test_edits_replace_their_words_and_leave_the_rest_as_it_is() -> None:
    text = "first: 1\r\n{a: wrod, b: 2}  # wrod\r\n"
    source = SourceText("r.yaml", text)
    word, whole = Origin(source, 2, 5, 9), Origin(source, 2, 1, 16)
    number = Origin(source, 2, 14, 15)
    fixes = [Fix(number, "30"), Fix(word, "word"), Fix(number, "30")]
    assert apply_text_edits(text, fixes) == text.replace("a: wrod, b: 2", "a: word, b: 30")
    # of two that overlap the first stays
    assert apply_text_edits(text, [Fix(word, "word"), Fix(whole, "x")]) == text.replace(
        "{a: wrod, b: 2}", "x"
    )
    assert apply_text_edits(text, []) == text
