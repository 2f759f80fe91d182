"""What single YAML events say: where they stand, which text or number they hold, and what is wrong with it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ruamel.yaml.events import AliasEvent

from titanrun.config.encoding import lone_surrogate
from titanrun.config.fixes import rewritten
from titanrun.config.limits import MAX_PROBLEMS, cut
from titanrun.config.places import Places
from titanrun.config.problems import Code, Origin, Problem, ProblemsFound, Related, SourceText
from titanrun.config.scalars import Refusal, resolve
from titanrun.config.tree import Scalar
from titanrun.config.yaml_events import events

TAG = re.compile(r"![^\s,\[\]{}]*")
# anchors and tags, and what may stand between them and their value
PROPERTIES = re.compile(r"(?:&[^\s,\[\]{}]++|![^\s,\[\]{}]*+|\s++|#.*+)*+")
BLOCK_HEADER = re.compile(r"[|>][-+0-9]*")
SURROGATE = re.compile("[\ud800-\udfff]")
ZERO_WIDTH = "\u200b\u200c\u200d\u2060"


class EventReader:
    """The events of one text from index `start` on, and the problems found in them."""

    def __init__(self, source: SourceText, start: int) -> None:
        self.places = Places(source)
        self.text = source.text
        self.start = start
        self.events: Iterator[Any] = events(source.text[start:])
        self.problems: list[Problem] = []
        self.path: list[str | int] = []
        self.last_end = start
        """The index behind the last scalar, alias or bracket."""

    def report(
        self,
        code: Code,
        message: str,
        origin: Origin,
        *,
        help: str | None = None,
        got: object = None,
        first: Origin | None = None,
    ) -> None:
        """Notes a problem at the current path; `first` is where a thing given twice stands for the first time."""
        related = (Related(first, "first given here", tuple(self.path)),) if first else ()
        self.note(
            Problem(code, message, tuple(self.path), origin, help=help, got=got, related=related)
        )

    def note(self, problem: Problem) -> None:
        """Keeps a problem for the end of the text, unless there are too many to read on."""
        self.problems.append(problem)
        if len(self.problems) >= MAX_PROBLEMS:
            raise ProblemsFound(self.problems)

    def place(self, event: Any) -> Origin:
        """Where a scalar, an alias or an opening bracket stands, without its anchor and tag."""
        end = self.last_end = self.start + event.end_mark.index
        return self.places.origin(self.content_start(event), end)

    def content_start(self, event: Any) -> int:
        """The index at which the value itself begins, behind its anchor and tag."""
        start: int = self.start + event.start_mark.index
        if event.anchor is None or isinstance(event, AliasEvent):
            return start
        properties = PROPERTIES.match(self.text, start)
        assert properties is not None
        end: int = self.start + event.end_mark.index
        return min(properties.end(), end)

    def first_line_end(self, start: int, behind: int) -> int:
        """The end of the first line of a block, without a comment. Its first entry is read, the key of it up to `behind`."""
        line_end = self.places.line_end(start)
        if self.last_end <= line_end:
            return self.last_end
        comment = self.text.find(" #", behind, line_end)
        return start + len(self.text[start : line_end if comment < 0 else comment].rstrip())

    def collection_end(self, event: Any, end_event: Any, first_line_end: int) -> int:
        """The index behind a mapping or list."""
        if not event.flow_style:
            return first_line_end
        if (
            end_event.start_mark.index < end_event.end_mark.index
        ):  # the mapping in `[a: 1]` has no bracket of its own
            self.last_end = self.start + end_event.end_mark.index
        return self.last_end

    def refuse_tag(self, event: Any) -> None:
        """Notes a tag: plain data needs none, and no code may come in by one."""
        start = self.start + event.start_mark.index
        properties = PROPERTIES.match(self.text, start)
        found = TAG.search(self.text, start, properties.end() if properties else start)
        origin = (
            self.places.origin(*found.span()) if found else self.place(event)
        )  # ruamel forgets a tag before an anchor
        name = cut(f"{event.ctag.handle or ''}{event.ctag.suffix}")
        help = 'remove it, or put the value in quotes if the "!" belongs to it'
        self.report("tag", f"tag {name} is not allowed", origin, help=help)

    def scalar_place(self, event: Any) -> Origin:
        """Where a scalar stands; a block of text is marked at its header."""
        place = self.place(event)
        if event.style not in ("|", ">"):
            return place
        header = BLOCK_HEADER.match(self.text, self.content_start(event))
        return self.places.origin(*header.span()) if header else place

    def scalar_value(self, event: Any, place: Origin) -> Scalar:
        """The value of a scalar. What is quoted is text."""
        if event.style is not None:
            return self.joined(event.value, place)
        value = resolve(event.value)
        if isinstance(value, Refusal):
            fix = rewritten(place, event.value, value.meant) if value.meant else None
            path = tuple(self.path)
            self.note(
                Problem(
                    value.code,
                    value.message,
                    path,
                    place,
                    help=value.help,
                    suggestion=value.meant,
                    got=event.value,
                    fix=fix,
                )
            )
            return None
        if isinstance(value, str):
            self.check_ends(value, place)
        return value

    def check_ends(self, text: str, place: Origin) -> None:
        """Notes blanks that YAML takes for letters: pasted from a web page, they pass for an indentation."""
        for character, where in (text[0], "before"), (text[-1], "after"):
            if not character.isascii() and (character.isspace() or character in ZERO_WIDTH):
                message = f"the blank {where} this text is U+{ord(character):04X}, which YAML takes for a letter"
                self.report("syntax", message, place, help="replace it with an ordinary space")
                return

    def joined(self, text: str, place: Origin) -> str:
        """The text with pairs of surrogates, as JSON escapes them, joined to characters."""
        if not SURROGATE.search(text):
            return text
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        left = SURROGATE.search(text)
        if left is not None:
            self.note(replace(lone_surrogate(ord(left.group()), place), path=tuple(self.path)))
        return text
