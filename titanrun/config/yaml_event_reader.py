"""Contents of single YAML events: location, text or number, and problems."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ruamel.yaml.events import AliasEvent

from titanrun.config.encoding import build_lone_surrogate_problem
from titanrun.config.limits import MAX_PROBLEMS, truncate_for_message
from titanrun.config.path_syntax import KEY
from titanrun.config.problems import (
    Origin,
    Problem,
    ProblemCode,
    ProblemsFound,
    RelatedLocation,
    SourceText,
)
from titanrun.config.text_edits import build_word_fix
from titanrun.config.text_positions import TextPositions
from titanrun.config.tree import Scalar
from titanrun.config.yaml_events import iter_yaml_events
from titanrun.config.yaml_scalars import ScalarRejection, parse_scalar

TAG = re.compile(r"![^\s,\[\]{}]*")
# anchors and tags, and the text allowed between them and their value
PROPERTIES = re.compile(r"(?:&[^\s,\[\]{}]++|![^\s,\[\]{}]*+|\s++|#.*+)*+")
# the environment variable of other readers of YAML: !env HOME
ENVIRONMENT_TAG = re.compile(r"!env(?:_var)?", re.IGNORECASE)
BLOCK_HEADER = re.compile(r"[|>][-+0-9]*")
SURROGATE = re.compile("[\ud800-\udfff]")
ZERO_WIDTH = "\u200b\u200c\u200d\u2060"


class EventReader:
    """Reader of the events of one text from index `start` on, with the problems found."""

    def __init__(self, source: SourceText, start: int) -> None:
        self.positions = TextPositions(source)
        self.text = source.text
        self.start = start
        self.events: Iterator[Any] = iter_yaml_events(source.text[start:])
        self.problems: list[Problem] = []
        self.path: list[str | int] = []
        self.last_end = start
        """Index after the last scalar, alias or bracket."""

    def report_problem(
        self,
        code: ProblemCode,
        message: str,
        origin: Origin,
        *,
        hint: str | None = None,
        got: object = None,
        first: Origin | None = None,
    ) -> None:
        """Record a problem at the current path.

        `first` is the first location of a value that is given twice.
        """
        related = (RelatedLocation(first, "first given here", tuple(self.path)),) if first else ()
        self.add_problem(
            Problem(code, message, tuple(self.path), origin, hint=hint, got=got, related=related)
        )

    def add_problem(self, problem: Problem) -> None:
        """Keep a problem for the end of the text, or raise if there are too many."""
        self.problems.append(problem)
        if len(self.problems) >= MAX_PROBLEMS:
            raise ProblemsFound(self.problems)

    def to_origin(self, event: Any) -> Origin:
        """Return the origin of a scalar, alias or opening bracket, without its anchor and tag."""
        end = self.last_end = self.start + event.end_mark.index
        return self.positions.to_origin(self.get_content_start(event), end)

    def get_content_start(self, event: Any) -> int:
        """Return the index at which the value itself begins, after its anchor and tag."""
        start: int = self.start + event.start_mark.index
        if event.anchor is None or isinstance(event, AliasEvent):
            return start
        properties = PROPERTIES.match(self.text, start)
        assert properties is not None
        end: int = self.start + event.end_mark.index
        return min(properties.end(), end)

    def get_first_line_end(self, start: int, behind: int) -> int:
        """Return the end of the first line of a block, without a comment.

        Its first entry has been read, its key up to `behind`.
        """
        line_end = self.positions.get_line_end(start)
        if self.last_end <= line_end:
            return self.last_end
        comment = self.text.find(" #", behind, line_end)
        return start + len(self.text[start : line_end if comment < 0 else comment].rstrip())

    def get_collection_end(self, event: Any, end_event: Any, first_line_end: int) -> int:
        """Return the index after a mapping or list."""
        if not event.flow_style:
            return first_line_end
        if (
            end_event.start_mark.index < end_event.end_mark.index
        ):  # the mapping in `[a: 1]` has no bracket
            self.last_end = self.start + end_event.end_mark.index
        return self.last_end

    def report_tag(self, event: Any) -> None:
        """Report a tag: plain data needs no tags, and tags must not load code."""
        start = self.start + event.start_mark.index
        properties = PROPERTIES.match(self.text, start)
        found = TAG.search(self.text, start, properties.end() if properties else start)
        origin = (
            self.positions.to_origin(*found.span()) if found else self.to_origin(event)
        )  # ruamel drops a tag before an anchor
        name = truncate_for_message(f"{event.ctag.handle or ''}{event.ctag.suffix}")
        hint = 'remove it, or put the value in quotes if the "!" belongs to it'
        if ENVIRONMENT_TAG.fullmatch(name) and KEY.fullmatch(getattr(event, "value", "")):
            hint = f"write ${{env:{event.value}}}"
        self.report_problem("tag", f"tag {name} is not allowed", origin, hint=hint)

    def get_scalar_origin(self, event: Any) -> Origin:
        """Return the origin of a scalar; a block of text is marked at its header."""
        place = self.to_origin(event)
        if event.style not in ("|", ">"):
            return place
        header = BLOCK_HEADER.match(self.text, self.get_content_start(event))
        return self.positions.to_origin(*header.span()) if header else place

    def parse_scalar_event(self, event: Any, place: Origin) -> Scalar:
        """Return the value of a scalar. Quoted values are text."""
        if event.style is not None:
            return self.join_surrogates(event.value, place)
        value = parse_scalar(event.value)
        if isinstance(value, ScalarRejection):
            fix = build_word_fix(place, event.value, value.meant) if value.meant else None
            path = tuple(self.path)
            self.add_problem(
                Problem(
                    value.code,
                    value.message,
                    path,
                    place,
                    hint=value.hint,
                    suggestion=value.meant,
                    got=event.value,
                    fix=fix,
                )
            )
            return None
        if isinstance(value, str):
            self.report_odd_blanks(value, place)
        return value

    def report_odd_blanks(self, text: str, place: Origin) -> None:
        """Report blanks that YAML reads as letters.

        Pasted from a web page, they look like indentation.
        """
        for character, where in (text[0], "before"), (text[-1], "after"):
            if not character.isascii() and (character.isspace() or character in ZERO_WIDTH):
                message = (
                    f"the blank {where} this text is U+{ord(character):04X}, "
                    "which YAML reads as a letter"
                )
                self.report_problem(
                    "syntax", message, place, hint="replace it with an ordinary space"
                )
                return

    def join_surrogates(self, text: str, place: Origin) -> str:
        """Return the text with surrogate pairs, as in JSON escapes, joined to characters."""
        if not SURROGATE.search(text):
            return text
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        left = SURROGATE.search(text)
        if left is not None:
            self.add_problem(
                replace(
                    build_lone_surrogate_problem(ord(left.group()), place), path=tuple(self.path)
                )
            )
        return text
