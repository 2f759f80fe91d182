"""Reads TOML: tomli decides what a text means, toml_spans where it says so."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

import tomli

from titanrun.config.limits import MAX_DIGITS, MAX_PROBLEMS, cut, refuse_count, refuse_depth
from titanrun.config.places import Places
from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, SourceText
from titanrun.config.scalars import Refusal, finite, fits_printing
from titanrun.config.toml_spans import GAP, Span, Spots, TooMuch, find_spots
from titanrun.config.toml_syntax import explain, unread_word
from titanrun.config.tree import Node, Scalar, in_part

# TOML has no null: this text stands for it
NULL = "null"
# after this many words without meaning, or this many characters read for them, the rest waits until they are put right
MOST_WORDS = MAX_PROBLEMS - 1
MOST_TEXT = 4_000_000


def read_toml(source: SourceText) -> Node:
    """The tables of a TOML text, the text "null" as null. Raises ProblemsFound with all that is wrong with it, ReadInPart where the
    rest can be used."""
    places = Places(source)
    data, spots, unread = understand(places)
    if not data:
        raise ProblemsFound(
            [Problem("empty", "holds nothing but comments", origin=Origin(source, 1, 1, 1))]
        )
    builder = TomlBuilder(places, spots, unread)
    root = builder.root(data)
    if builder.problems:
        raise in_part(builder.problems, root)
    return root


def understand(places: Places) -> tuple[dict[str, object], Spots, dict[int, Problem]]:
    """What tomli reads, where it stands, and the words without meaning by where they end.

    tomli stops at the first mistake. A word that it cannot read is taken for a 0 as long as the word, so that the rest of the text
    stays where it is, and is read again.
    """
    text, unread = places.source.text, dict[int, Problem]()
    while True:
        try:
            spots = find_spots(text)
            return tomli.loads(text), spots, unread
        except TooMuch as limit:
            refuse(limit, places)
        except tomli.TOMLDecodeError as error:
            word = unread_word(error, places)
            if word is None:
                raise ProblemsFound([*unread.values(), *explain(error, places, spots)]) from None
            nothing = word.got is None
            if nothing or len(unread) >= MOST_WORDS or len(text) * len(unread) > MOST_TEXT:
                raise ProblemsFound([*unread.values(), word]) from None
            start, end = span_of(word, places)
            text = f"{text[:start]}{'0'.rjust(end - start)}{text[end:]}"
            unread[end] = word


def span_of(problem: Problem, places: Places) -> Span:
    """The indexes of what a problem marks."""
    assert problem.origin is not None
    first = places.starts[problem.origin.line - 1] - 1
    return first + problem.origin.column, first + problem.origin.end_column


def refuse(limit: TooMuch, places: Places) -> NoReturn:
    """Ends reading at a limit."""
    origin = places.origin(*limit.span)
    if limit.limit == "depth":
        refuse_depth([], origin, limit.path)
    if limit.limit == "values":
        refuse_count([], origin, limit.path)
    message = f"a number of {limit.span[1] - limit.span[0]} characters is longer than {MAX_DIGITS}"
    raise ProblemsFound([Problem("limit", message, limit.path, origin)])


class TomlBuilder:
    """Joins the values of a text with their places."""

    def __init__(self, places: Places, spots: Spots, unread: Mapping[int, Problem]) -> None:
        self.places = places
        self.spots = spots
        self.unread = unread
        self.problems: list[Problem] = []

    def root(self, data: dict[str, object]) -> Node:
        """The node of the whole text, marked at its first line."""
        start = GAP.match(self.places.source.text)
        first = start.end() if start else 0
        origin = self.places.origin(first, self.places.line_end(first))
        return Node({key: self.node(value, (key,)) for key, value in data.items()}, origin)

    def node(self, value: object, path: DataPath) -> Node:
        """The node of the value at `path`."""
        spot = self.spots.found[path]
        origin = self.places.origin(*spot.value)
        key = self.places.origin(*spot.key) if spot.key else None
        word = self.unread.get(spot.value[1])
        if word is not None and word.origin is not None and not isinstance(value, dict | list):
            self.problems.append(replace(word, path=path))
            return Node(None, word.origin, key)
        if isinstance(value, dict):
            return Node(
                {name: self.node(child, (*path, name)) for name, child in value.items()},
                origin,
                key,
            )
        if isinstance(value, list):
            return Node(
                [self.node(child, (*path, index)) for index, child in enumerate(value)], origin, key
            )
        return Node(self.scalar(value, path, spot.value, origin), origin, key)

    def scalar(self, value: object, path: DataPath, span: Span, origin: Origin) -> Scalar:
        """A value without children; null, with a problem, for what a recipe cannot hold."""
        accepted: Scalar | Refusal
        written = self.places.source.text[slice(*span)]
        if isinstance(value, str | bool):
            return None if value == NULL else value
        if isinstance(value, int):
            accepted = fits_printing(value)
        elif isinstance(value, float):
            accepted = (
                value
                if "inf" in written or not math.isinf(value)
                else finite(written.replace("_", ""))
            )
        else:
            accepted = Refusal(
                "wrong-type",
                f"{cut(written)} is a date or time, which no key takes",
                f'put it in quotes: "{written}"',
            )
        if not isinstance(accepted, Refusal):
            return accepted
        self.problems.append(
            Problem(accepted.code, accepted.message, path, origin, help=accepted.help, got=written)
        )
        return None
