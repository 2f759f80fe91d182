"""The comments of a TOML text, each with the key or table it belongs to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from titanrun.config.places import Places
from titanrun.config.problems import DataPath, SourceText
from titanrun.config.toml_spans import TEXT, Spot, find_spots

COMMENT = re.compile(rf"(?:{TEXT.pattern})|(?P<comment>#[^\r\n]*)")


@dataclass(frozen=True, slots=True)
class Comments:
    """Comment lines above a key, the comment behind it, and comment lines below it that an empty line parts from what follows."""

    above: tuple[str, ...] = ()
    behind: str = ""
    below: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.above or self.behind or self.below)


NONE = Comments()


def comments_of(source: SourceText) -> dict[DataPath, Comments]:
    """The comments of each key and table of a text that is TOML; those at the top of the file belong to the empty path."""
    places = Places(source)
    lines = source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    found: dict[DataPath, Comments] = {}
    owner: DataPath = ()
    line_after = 0
    for path, spot in statements(find_spots(source.text).found):
        assert spot.key is not None
        first, last = places.line_number(spot.key[0]) - 1, places.line_number(spot.value[1]) - 1
        parted, touching = gap(lines[line_after:first])
        found[owner] = with_more(found.get(owner, NONE), parted)
        inside = [
            match["comment"].rstrip()
            for match in COMMENT.finditer(source.text, *spot.value)
            if match["comment"]
        ]
        found[path] = Comments((*touching, *inside), behind(source.text, spot.value[1], places))
        owner, line_after = path, last + 1
    parted, touching = gap(lines[line_after:])
    found[owner] = with_more(found.get(owner, NONE), [*parted, *touching])
    return {path: comments for path, comments in found.items() if comments}


def statements(spots: dict[DataPath, Spot]) -> Iterator[tuple[DataPath, Spot]]:
    """Keys and table headers with lines of their own, in the order of the text: what stands inside a value is left out."""
    end = 0
    for path, spot in sorted(spots.items(), key=lambda item: (item[1].value[0], -item[1].value[1])):
        if spot.key is not None and spot.key[0] >= end:
            yield path, spot
            end = max(spot.value[1], spot.key[1])


def gap(lines: list[str]) -> tuple[list[str], list[str]]:
    """The comment lines between two statements: those that an empty line parts from the second one, and those that touch it."""
    texts = [line.strip() for line in lines]
    touching: list[str] = []
    while texts and texts[-1].startswith("#"):
        touching.insert(0, texts.pop())
    return [text for text in texts if text.startswith("#")], touching


def with_more(comments: Comments, below: list[str]) -> Comments:
    """The same with further lines below."""
    return Comments(comments.above, comments.behind, (*comments.below, *below))


def behind(text: str, end: int, places: Places) -> str:
    """The comment on the rest of a line."""
    rest = text[end : places.line_end(end)]
    return rest[rest.index("#") :].rstrip() if "#" in rest else ""
