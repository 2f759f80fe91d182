"""TOML reader: tomli parses the values, toml_spans locates them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import tomli

from titanrun.config.limits import (
    MAX_DIGITS,
    MAX_PROBLEMS,
    raise_too_deep,
    raise_too_many_values,
    truncate_for_message,
)
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, SourceText
from titanrun.config.text_positions import TextPositions
from titanrun.config.toml_errors import explain_toml_error, find_unread_word_problem
from titanrun.config.toml_spans import GAP, Span, TomlLimitError, TomlSpans, find_toml_spans
from titanrun.config.tree import Node, Scalar, build_read_error
from titanrun.config.yaml_scalars import ScalarRejection, parse_finite_float, reject_long_integer

# TOML has no null: this text represents it
NULL = "null"
# after this many unreadable words, or this many characters read for them, reading stops until they
# are fixed
MAX_UNREAD_WORDS = MAX_PROBLEMS - 1
MAX_REREAD_CHARACTERS = 4_000_000


def read_toml(source: SourceText) -> Node:
    """Read the tables of a TOML text; the text "null" is read as null.

    Raises ProblemsFound with all problems of the text, or PartialReadError if the rest is usable.
    """
    places = TextPositions(source)
    data, spots, unread = parse_toml_text(places)
    if not data:
        raise ProblemsFound(
            [Problem("empty", "contains nothing but comments", origin=Origin(source, 1, 1, 1))]
        )
    builder = TomlBuilder(places, spots, unread)
    root = builder.build_root(data)
    if builder.problems:
        raise build_read_error(builder.problems, root)
    return root


def parse_toml_text(
    positions: TextPositions,
) -> tuple[dict[str, object], TomlSpans, dict[int, Problem]]:
    """Return the data that tomli reads, its locations, and unread words by their end index.

    tomli stops at the first mistake. A word that it cannot read is replaced by a 0 of the same
    length, so that the rest of the text keeps its position, and the text is read again.
    """
    text, unread = positions.source.text, dict[int, Problem]()
    while True:
        try:
            spots = find_toml_spans(text)
            return tomli.loads(text), spots, unread
        except TomlLimitError as limit:
            raise_limit_problem(limit, positions)
        except tomli.TOMLDecodeError as error:
            word = find_unread_word_problem(error, positions)
            if word is None:
                raise ProblemsFound(
                    [*unread.values(), *explain_toml_error(error, positions, spots)]
                ) from None
            nothing = word.got is None
            if (
                nothing
                or len(unread) >= MAX_UNREAD_WORDS
                or len(text) * len(unread) > MAX_REREAD_CHARACTERS
            ):
                raise ProblemsFound([*unread.values(), word]) from None
            start, end = get_problem_span(word, positions)
            text = f"{text[:start]}{'0'.rjust(end - start)}{text[end:]}"
            unread[end] = word


def get_problem_span(problem: Problem, positions: TextPositions) -> Span:
    """Return the indexes that a problem marks."""
    assert problem.origin is not None
    first = positions.line_starts[problem.origin.line - 1] - 1
    return first + problem.origin.column, first + problem.origin.end_column


def raise_limit_problem(limit: TomlLimitError, positions: TextPositions) -> NoReturn:
    """Raise the problem of an exceeded limit."""
    origin = positions.to_origin(*limit.span)
    if limit.limit == "depth":
        raise_too_deep([], origin, limit.path)
    if limit.limit == "values":
        raise_too_many_values([], origin, limit.path)
    message = (
        f"a number of {limit.span[1] - limit.span[0]:,} characters is longer than {MAX_DIGITS:,}"
    )
    raise ProblemsFound([Problem("limit", message, limit.path, origin)])


class TomlBuilder:
    """Builder of nodes from the values of a text and their locations."""

    def __init__(
        self, positions: TextPositions, spans: TomlSpans, unread_words: Mapping[int, Problem]
    ) -> None:
        self.positions = positions
        self.spans = spans
        self.unread_words = unread_words
        self.problems: list[Problem] = []

    def build_root(self, data: dict[str, object]) -> Node:
        """Build the node of the whole text, marked at its first line."""
        start = GAP.match(self.positions.source.text)
        first = start.end() if start else 0
        origin = self.positions.to_origin(first, self.positions.get_line_end(first))
        return Node({key: self.build_node(value, (key,)) for key, value in data.items()}, origin)

    def build_node(self, value: object, path: DataPath) -> Node:
        """Build the node of the value at `path`."""
        spot = self.spans.by_path[path]
        origin = self.positions.to_origin(*spot.value)
        key = self.positions.to_origin(*spot.key) if spot.key else None
        word = self.unread_words.get(spot.value[1])
        if word is not None and word.origin is not None and not isinstance(value, dict | list):
            self.problems.append(replace(word, path=path))
            return Node(None, word.origin, key)
        if isinstance(value, dict):
            return Node(
                {name: self.build_node(child, (*path, name)) for name, child in value.items()},
                origin,
                key,
            )
        if isinstance(value, list):
            return Node(
                [self.build_node(child, (*path, index)) for index, child in enumerate(value)],
                origin,
                key,
            )
        return Node(self.build_scalar(value, path, spot.value, origin), origin, key)

    def build_scalar(self, value: object, path: DataPath, span: Span, origin: Origin) -> Scalar:
        """Return a value without children. Unsupported values become null, with a problem."""
        accepted: Scalar | ScalarRejection
        written = self.positions.source.text[slice(*span)]
        if isinstance(value, str | bool):
            return None if value == NULL else value
        if isinstance(value, int):
            accepted = reject_long_integer(value)
        elif isinstance(value, float):
            accepted = (
                value
                if "inf" in written or not math.isinf(value)
                else parse_finite_float(written.replace("_", ""))
            )
        else:
            accepted = ScalarRejection(
                "wrong-type",
                f"{truncate_for_message(written)} is a date or time, which no key accepts",
                f'put it in quotes: "{written}"',
            )
        if not isinstance(accepted, ScalarRejection):
            return accepted
        self.problems.append(
            Problem(accepted.code, accepted.message, path, origin, hint=accepted.hint, got=written)
        )
        return None
