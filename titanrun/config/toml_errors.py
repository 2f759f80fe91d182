"""Plain messages for tomli's errors, at the location where a person would look."""

import re
from typing import NamedTuple

import tomli

from titanrun.config.limits import truncate_for_message
from titanrun.config.number_messages import describe_text_for_number
from titanrun.config.problems import Origin, Problem, RelatedLocation
from titanrun.config.text_edits import build_unquote_fix, build_word_fix
from titanrun.config.text_positions import TextPositions
from titanrun.config.toml_spans import RepeatedKey, TomlSpans
from titanrun.config.tree import Scalar
from titanrun.config.yaml_scalars import BOOLEAN_WORDS, ScalarRejection, parse_scalar

BAD_VALUE_PREFIXES = ("Invalid value", "Expected newline", "Unclosed")
REPEATED_KEY_PREFIXES = (
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


class TomlErrorMessage(NamedTuple):
    """Message for the errors that begin with `beginning`.

    `is_at_end` places it where the text stopped being valid.
    """

    beginning: str
    message: str
    hint: str | None = None
    is_at_end: bool = False


TOML_ERROR_MESSAGES = (
    TomlErrorMessage("Expected '=' after a key", "expected '=' after the key", "write key = value"),
    TomlErrorMessage("Invalid statement", "expected a key or a [table] here", "write key = value"),
    TomlErrorMessage(
        "Invalid initial character for a key",
        "expected a key here",
        "put a key in quotes if it holds more than letters, digits, _ and -",
    ),
    TomlErrorMessage(
        "Expected ']",
        "expected the end of the table's name here",
        "write [table], or [[table]] for a list of tables",
    ),
    TomlErrorMessage(
        "Expected newline",
        "expected the end of the line here",
        "write one key = value on each line",
    ),
    TomlErrorMessage("Invalid date", "this date does not exist", "put it in quotes if it is text"),
    TomlErrorMessage("Unclosed array", "expected ',' or ']' here"),
    TomlErrorMessage("Unclosed inline table", "expected ',' or '}' here"),
    TomlErrorMessage("Unterminated string", "this quote is not closed", is_at_end=True),
    TomlErrorMessage('Expected "', "this quote is not closed", is_at_end=True),
    TomlErrorMessage(
        "Illegal character '\\n'", "this quote is not closed on its line", is_at_end=True
    ),
    TomlErrorMessage(
        "Found invalid character '\\n'", "this quote is not closed on its line", is_at_end=True
    ),
    TomlErrorMessage("Illegal character", "a carriage return that ends no line"),
    TomlErrorMessage("Found invalid character", "a carriage return that ends no line"),
    TomlErrorMessage("Unescaped '\\'", "the backslash before this is not an escape", ESCAPE),
    TomlErrorMessage("Invalid hex value", "this escape has too few digits", ESCAPE),
    TomlErrorMessage("Escaped character", "this escape is not a valid character", ESCAPE),
)


def explain_toml_error(
    error: tomli.TOMLDecodeError, positions: TextPositions, spans: TomlSpans
) -> list[Problem]:
    """Return the problems of a tomli error that no single value causes."""
    at = get_error_index(error, positions.source.text)
    if error.msg.startswith(REPEATED_KEY_PREFIXES):
        return [
            build_repeated_key_problem(repeat, positions) for repeat in spans.repeated_keys
        ] or [build_reopened_table_problem(at, positions)]
    return [build_toml_problem(error.msg, at, positions, spans)]


def find_unread_word_problem(
    error: tomli.TOMLDecodeError, positions: TextPositions
) -> Problem | None:
    """Return the problem of one unquoted word, if only that word causes the tomli error."""
    if not error.msg.startswith(BAD_VALUE_PREFIXES):
        return None
    return find_unread_value_problem(
        get_error_index(error, positions.source.text),
        positions,
        is_at_value=error.msg == "Invalid value",
    )


def get_error_index(error: tomli.TOMLDecodeError, text: str) -> int:
    """Return the index of an error in the text, in which tomli counts CRLF as one character."""
    shift = 0
    for found in re.finditer("\r\n", text):
        if found.start() - shift >= error.pos:
            break
        shift += 1
    return error.pos + shift


def build_repeated_key_problem(repeat: RepeatedKey, positions: TextPositions) -> Problem:
    """Build the problem of a key that already has a value or a table."""
    first = RelatedLocation(positions.to_origin(*repeat.first), "first given here", repeat.path)
    return Problem(
        "duplicate-key",
        f"key '{truncate_for_message(str(repeat.path[-1]))}' is given twice",
        repeat.path,
        positions.to_origin(*repeat.key),
        hint="remove one of the two",
        related=(first,),
    )


def build_reopened_table_problem(index: int, positions: TextPositions) -> Problem:
    """Build the problem of a table that continues where TOML does not allow it."""
    start = positions.line_starts[positions.get_line_number(index) - 1]
    hint = "write all keys of a table under one [table], or all of them dotted"
    return Problem(
        "duplicate-key",
        "this table is already closed, or is not a table",
        origin=positions.to_origin(start, positions.get_line_end(index)),
        hint=hint,
    )


def find_unread_value_problem(
    index: int, positions: TextPositions, *, is_at_value: bool
) -> Problem | None:
    """Return the problem of an unquoted word that TOML cannot read.

    `is_at_value` says that `index` is its first character. Return None if no word is the cause.
    """
    text = positions.source.text
    before = WORD_BEFORE.search(text, max(0, index - LONGEST_WORD), index)
    found = WORD.match(text, before.start() if before else index)
    if (
        found is None
        or not (is_at_value or found.start() < index < found.end())
        or found.group().startswith(("'", '"'))
    ):
        return None
    word = found.group()
    if not word:
        return Problem(
            "syntax",
            "a value is missing",
            origin=positions.to_point_origin(index),
            hint='write "" for empty text',
        )
    value = parse_scalar(word)
    origin = positions.to_origin(*found.span())
    if isinstance(value, ScalarRejection):
        fix = build_word_fix(origin, word, value.meant) if value.meant else None
        return Problem(
            value.code,
            value.message,
            origin=origin,
            hint=value.hint,
            suggestion=value.meant,
            got=word,
            fix=fix,
        )
    return build_unquoted_word_problem(word, value, origin)


def build_unquoted_word_problem(word: str, value: Scalar, origin: Origin) -> Problem:
    """Build the problem of an unquoted word that YAML would read as `value`."""
    if isinstance(value, str):
        meant = BOOLEAN_WORDS.get(word.lower())
        fix = build_unquote_fix(origin, word, meant) if meant else None
        hint = f'write "{truncate_for_message(word)}"{format_alternative_meaning(word)}'
        return Problem(
            "syntax",
            f"{truncate_for_message(word)} is not in quotes",
            origin=origin,
            hint=hint,
            got=word,
            fix=fix,
        )
    written = '"null" in quotes' if value is None else str(value).lower()
    fix = build_unquote_fix(origin, word, written) if isinstance(value, bool) else None
    return Problem(
        "syntax",
        f"{truncate_for_message(word)} is not TOML",
        origin=origin,
        hint=f"write {written}",
        got=word,
        fix=fix,
    )


def format_alternative_meaning(word: str) -> str:
    """Return the other possible meaning of an unquoted word besides text.

    This is a boolean or a number in the notation of other formats.
    """
    if word.lower() in BOOLEAN_WORDS:
        return f" for text, {BOOLEAN_WORDS[word.lower()]} for a boolean"
    meant = describe_text_for_number("a number", word, "")
    return (
        f" for text; for a number, {meant.hint.removeprefix('write ')}"
        if meant.code == "ambiguous-number" and meant.hint
        else ""
    )


def build_toml_problem(
    message: str, index: int, positions: TextPositions, spans: TomlSpans
) -> Problem:
    """Build the problem from the matching TOML_ERROR_MESSAGES entry, or with tomli's message."""
    for mistake in TOML_ERROR_MESSAGES:
        if message.startswith(mistake.beginning):
            origin = positions.to_point_origin(spans.end if mistake.is_at_end else index)
            return Problem("syntax", mistake.message, origin=origin, hint=mistake.hint)
    return Problem(
        "syntax",
        f"not TOML: {message[:1].lower()}{message[1:]}",
        origin=positions.to_point_origin(index),
    )
