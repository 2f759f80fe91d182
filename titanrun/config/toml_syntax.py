"""Puts tomli's errors in plain words, at the place where a person would look."""

import re
from typing import NamedTuple

import tomli

from titanrun.config.fixes import rewritten, unquoted
from titanrun.config.limits import cut
from titanrun.config.places import Places
from titanrun.config.problems import Problem, Related
from titanrun.config.scalars import BOOLEAN_WORDS, Refusal, resolve
from titanrun.config.toml_spans import Repeat, Spots
from titanrun.config.wording import word_text_for_number

BAD_VALUE = ("Invalid value", "Expected newline", "Unclosed")
TWICE = (
    "Cannot overwrite",
    "Cannot declare",
    "Cannot redefine",
    "Cannot mutate",
    "Duplicate inline",
)
WORD_BEFORE = re.compile(r"[^\s=,\[\]{}]*$")
WORD = re.compile(r"(?:\$\{[^}\n]*+\}|[^\s,\]}#])*+")
LONGEST_WORD = 100
ESCAPE = "write \\\\ for a backslash, or use single quotes"


class Mistake(NamedTuple):
    """How to say the errors that begin with `beginning`; `at_end` places it where the text stopped making sense."""

    beginning: str
    message: str
    help: str | None = None
    at_end: bool = False


MISTAKES = (
    Mistake("Expected '=' after a key", "expected '=' after the key", "write key = value"),
    Mistake("Invalid statement", "expected a key or a [table] here", "write key = value"),
    Mistake(
        "Invalid initial character for a key",
        "expected a key here",
        "put a key in quotes if it holds more than letters, digits, _ and -",
    ),
    Mistake(
        "Expected ']",
        "expected the end of the table's name here",
        "write [table], or [[table]] for a list of tables",
    ),
    Mistake(
        "Expected newline",
        "expected the end of the line here",
        "write one key = value on each line",
    ),
    Mistake("Invalid date", "there is no such date", "put it in quotes if it is text"),
    Mistake("Unclosed array", "expected ',' or ']' here"),
    Mistake("Unclosed inline table", "expected ',' or '}' here"),
    Mistake("Unterminated string", "this quote is never closed", at_end=True),
    Mistake('Expected "', "this quote is never closed", at_end=True),
    Mistake("Illegal character '\\n'", "this quote is not closed on its line", at_end=True),
    Mistake("Found invalid character '\\n'", "this quote is not closed on its line", at_end=True),
    Mistake("Illegal character", "a carriage return that ends no line"),
    Mistake("Found invalid character", "a carriage return that ends no line"),
    Mistake("Unescaped '\\'", "the backslash before this is no escape", ESCAPE),
    Mistake("Invalid hex value", "this escape has too few digits", ESCAPE),
    Mistake("Escaped character", "this escape stands for no character", ESCAPE),
)


def explain(error: tomli.TOMLDecodeError, places: Places, spots: Spots) -> list[Problem]:
    """The problems that an error of tomli stands for, where no single value is to blame."""
    at = index_of(error, places.source.text)
    if error.msg.startswith(TWICE):
        return [given_twice(repeat, places) for repeat in spots.again] or [opened_twice(at, places)]
    return [known_mistake(error.msg, at, places, spots)]


def unread_word(error: tomli.TOMLDecodeError, places: Places) -> Problem | None:
    """The problem of one unquoted word, if such a word is all that an error of tomli is about."""
    if not error.msg.startswith(BAD_VALUE):
        return None
    return unread_value(
        index_of(error, places.source.text), places, at_value=error.msg == "Invalid value"
    )


def index_of(error: tomli.TOMLDecodeError, text: str) -> int:
    """The index of an error in the text, of which tomli saw every CRLF as one character."""
    shift = 0
    for found in re.finditer("\r\n", text):
        if found.start() - shift >= error.pos:
            break
        shift += 1
    return error.pos + shift


def given_twice(repeat: Repeat, places: Places) -> Problem:
    """The problem of a key that has a value or a table already."""
    first = Related(places.origin(*repeat.first), "first given here", repeat.path)
    return Problem(
        "duplicate-key",
        f"key '{cut(str(repeat.path[-1]))}' is given twice",
        repeat.path,
        places.origin(*repeat.key),
        help="remove one of the two",
        related=(first,),
    )


def opened_twice(at: int, places: Places) -> Problem:
    """The problem of a table that goes on where TOML does not let it."""
    start = places.starts[places.line_number(at) - 1]
    help = "write all keys of a table under one [table], or all of them dotted"
    return Problem(
        "duplicate-key",
        "this table is closed already, or no table",
        origin=places.origin(start, places.line_end(at)),
        help=help,
    )


def unread_value(at: int, places: Places, *, at_value: bool) -> Problem | None:
    """The problem of an unquoted word that TOML cannot read, `at_value` at its first character; None where no word is to blame."""
    text = places.source.text
    before = WORD_BEFORE.search(text, max(0, at - LONGEST_WORD), at)
    found = WORD.match(text, before.start() if before else at)
    if (
        found is None
        or not (at_value or found.start() < at < found.end())
        or found.group().startswith(("'", '"'))
    ):
        return None
    word = found.group()
    if not word:
        return Problem(
            "syntax", "a value is missing", origin=places.point(at), help='write "" for empty text'
        )
    value = resolve(word)
    origin = places.origin(*found.span())
    if isinstance(value, Refusal):
        fix = rewritten(origin, word, value.meant) if value.meant else None
        return Problem(
            value.code,
            value.message,
            origin=origin,
            help=value.help,
            suggestion=value.meant,
            got=word,
            fix=fix,
        )
    if isinstance(value, str):
        meant = BOOLEAN_WORDS.get(word.lower())
        fix = unquoted(origin, word, meant) if meant else None
        help = f'write "{cut(word)}"{or_instead(word)}'
        return Problem(
            "syntax", f"{cut(word)} is not in quotes", origin=origin, help=help, got=word, fix=fix
        )
    written = '"null" in quotes' if value is None else str(value).lower()
    fix = unquoted(origin, word, written) if isinstance(value, bool) else None
    return Problem(
        "syntax",
        f"{cut(word)} is not TOML",
        origin=origin,
        help=f"write {written}",
        got=word,
        fix=fix,
    )


def or_instead(word: str) -> str:
    """What else than text an unquoted word may stand for: a boolean or a number as people write them elsewhere."""
    if word.lower() in BOOLEAN_WORDS:
        return f" for text, {BOOLEAN_WORDS[word.lower()]} for a boolean"
    meant = word_text_for_number("a number", word, "")
    return (
        f" for text; for a number, {meant.help.removeprefix('write ')}"
        if meant.code == "ambiguous-number" and meant.help
        else ""
    )


def known_mistake(message: str, at: int, places: Places, spots: Spots) -> Problem:
    """The row of MISTAKES that fits, or the error as tomli words it."""
    for mistake in MISTAKES:
        if message.startswith(mistake.beginning):
            origin = places.point(spots.end if mistake.at_end else at)
            return Problem("syntax", mistake.message, origin=origin, help=mistake.help)
    return Problem(
        "syntax", f"not TOML: {message[:1].lower()}{message[1:]}", origin=places.point(at)
    )
