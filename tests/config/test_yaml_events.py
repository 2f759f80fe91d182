"""The faster scanner sees what ruamel.yaml sees."""

from collections.abc import Iterable
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.parser import Parser
from ruamel.yaml.reader import Reader
from ruamel.yaml.scanner import Scanner

from titanrun.config.yaml_events import YamlVersion, iter_yaml_events

WORDS = [
    "a",
    "b1",
    "key: ",
    "k:",
    ":",
    "- ",
    "-",
    " ",
    "  ",
    " # c",
    "#",
    "---",
    "...",
    "1.5",
    "<<: ",
    "${x}",
    "é",
    "@",
    "?",
    "? ",
]
MARKS = [
    "[",
    "]",
    "{",
    "}",
    ",",
    '"',
    "'",
    "&x ",
    "*x",
    "!t ",
    "|",
    ">",
    "\\",
    "\\x41",
    "\t",
    "\n",
    "\n  ",
    "\n    ",
    "\n- ",
    "\r\n",
]
TEXTS = st.lists(st.sampled_from(WORDS + MARKS), min_size=1, max_size=25).map("".join)


def of_ruamel(text: str) -> Iterable[object]:
    """The events of ruamel's own classes."""
    owner = SimpleNamespace(
        typ="events", comment_handling=None, resolver=YamlVersion(), doc_infos=[YamlVersion()]
    )
    owner.reader = Reader(text, loader=owner)
    owner.scanner = Scanner(loader=owner)
    parser = Parser(loader=owner)
    while parser.check_event():
        yield parser.get_event()


def described(found: Iterable[object]) -> list[object]:
    """What each event says and where it stands, up to an error."""
    seen: list[object] = []
    try:
        for event in found:
            marks = [
                (mark.line, mark.column, mark.index) for mark in (event.start_mark, event.end_mark)
            ]
            seen.append(
                (type(event), getattr(event, "value", None), getattr(event, "anchor", None), marks)
            )
    except MarkedYAMLError as error:
        mark = error.problem_mark
        seen.append((error.context, error.problem, mark and (mark.line, mark.column, mark.index)))
    return seen


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_events_and_errors_are_those_of_ruamel(text: str) -> None:
    assert described(iter_yaml_events(text)) == described(of_ruamel(text))
