"""Comments of a TOML text by the key or table they belong to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from titanrun.config.problems import DataPath, SourceText
from titanrun.config.text_positions import TextPositions
from titanrun.config.toml_spans import TEXT, ValueSpan, find_toml_spans

COMMENT = re.compile(rf"(?:{TEXT.pattern})|(?P<comment>#[^\r\n]*)")


@dataclass(frozen=True, slots=True)
class KeyComments:
    """Comment lines above a key, the comment after it, and comment lines below it.

    An empty line separates the lines below from what follows.
    """

    above: tuple[str, ...] = ()
    trailing: str = ""
    below: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.above or self.trailing or self.below)


NO_COMMENTS = KeyComments()


def parse_comments(source: SourceText) -> dict[DataPath, KeyComments]:
    """Return the comments of each key and table of a TOML text.

    Those at the top of the file belong to the empty path.
    """
    places = TextPositions(source)
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: dict[DataPath, KeyComments] = {}
    owner: DataPath = ()
    line_after = 0
    for path, spot in list_statements(find_toml_spans(source.text).by_path):
        assert spot.key is not None
        first, last = (
            places.get_line_number(spot.key[0]) - 1,
            places.get_line_number(spot.value[1]) - 1,
        )
        parted, touching = split_gap_comments(lines[line_after:first])
        found[owner] = add_comments_below(found.get(owner, NO_COMMENTS), parted)
        inside = [
            match["comment"].rstrip()
            for match in COMMENT.finditer(source.text, *spot.value)
            if match["comment"]
        ]
        found[path] = KeyComments(
            (*touching, *inside), find_trailing_comment(source.text, spot.value[1], places)
        )
        owner, line_after = path, last + 1
    parted, touching = split_gap_comments(lines[line_after:])
    found[owner] = add_comments_below(found.get(owner, NO_COMMENTS), [*parted, *touching])
    return {path: comments for path, comments in found.items() if comments}


def list_statements(spots: dict[DataPath, ValueSpan]) -> Iterator[tuple[DataPath, ValueSpan]]:
    """Yield keys and table headers with their own lines, in text order.

    What is inside a value is left out.
    """
    end = 0
    for path, spot in sorted(spots.items(), key=lambda item: (item[1].value[0], -item[1].value[1])):
        if spot.key is not None and spot.key[0] >= end:
            yield path, spot
            end = max(spot.value[1], spot.key[1])


def split_gap_comments(lines: list[str]) -> tuple[list[str], list[str]]:
    """Split the comment lines between two statements.

    Return those that an empty line separates from the second one, and those adjacent to it.
    """
    texts = [line.strip() for line in lines]
    touching: list[str] = []
    while texts and texts[-1].startswith("#"):
        touching.insert(0, texts.pop())
    return [text for text in texts if text.startswith("#")], touching


def add_comments_below(comments: KeyComments, below: list[str]) -> KeyComments:
    """Return the comments with further lines below."""
    return KeyComments(comments.above, comments.trailing, (*comments.below, *below))


def find_trailing_comment(text: str, end: int, places: TextPositions) -> str:
    """Return the comment on the rest of a line."""
    rest = text[end : places.get_line_end(end)]
    return rest[rest.index("#") :].rstrip() if "#" in rest else ""
