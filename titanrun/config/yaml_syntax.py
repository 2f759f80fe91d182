"""Puts ruamel.yaml's syntax errors in plain words, at the place where a person would look."""

import re
from typing import NamedTuple

from ruamel.yaml.error import MarkedYAMLError

from titanrun.config.limits import cut
from titanrun.config.places import Places
from titanrun.config.problems import Code, Problem, Related

ODD_BLANK = re.compile("[ \t]*([\t\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000])")
NO_SPACE = re.compile(r"\s*(?:- +)?([A-Za-z_][\w.-]*:)([^\s:/\\].*)")
KEY = re.compile(r".*:(?:\s|$)")
KEY_OR_ITEM = re.compile(r"\s*-(?:\s|$)|.*:(?:\s|$)")
TWO_WORDS = re.compile(r"(?:- +)?([A-Za-z_]\w*)(?: *= *| +)([^\s:#=]+)")
DIRECTIVE = re.compile(r"(?:[ \t]*+(?:#[^\r\n]*+)?+[\r\n])*+(%[^\r\n]*)")
WORD_START = re.compile(r"[^\s,\[{]*$")
QUOTE = "put the value in quotes"
ESCAPE = "write \\\\ for a backslash, or use single quotes"
LINE_UP = "line it up with the keys it belongs to"
NO_KEY = "this line is neither `key: value` nor a list item"


class Mistake(NamedTuple):
    """How to say an error whose context and problem match `pattern`; `{at}` is the character at its place."""

    pattern: str
    message: str
    help: str | None = None
    at_context: bool = False
    code: Code = "syntax"


MISTAKES = (
    Mistake("quoted scalar .*end of stream", "this quote is never closed", at_context=True),
    Mistake(
        "quoted scalar .*document separator",
        "this quote is not closed before a line of --- or ...",
        at_context=True,
    ),
    Mistake("unknown escape character", "'\\{at}' is no escape", ESCAPE),
    Mistake("escape sequence of", "this escape has too few digits", ESCAPE),
    Mistake("number too large", "this escape stands for no character", ESCAPE),
    Mistake("an alias", "no name follows the '*' of an alias", QUOTE, at_context=True),
    Mistake("an anchor", "no name follows the '&' of an anchor", QUOTE, at_context=True),
    Mistake(
        "an? tag$|an? tag |tag handle",
        "this tag is not allowed",
        'remove it, or put the value in quotes if the "!" belongs to it',
        at_context=True,
        code="tag",
    ),
    Mistake(
        "sequence entries are not allowed",
        "a list item cannot begin here",
        "begin the list on the next line, or write [a, b]",
    ),
    Mistake("mapping keys are not allowed", "'?' cannot stand here", QUOTE),
    Mistake("cannot start any token", "a value cannot begin with '{at}'", QUOTE),
    Mistake("expected ',' or .*end>'", "this bracket is never closed", at_context=True),
    Mistake(
        "expected ',' or ']'",
        "expected ',' or ']' here",
        "put a value in quotes if it holds any of , : [ ] { }",
    ),
    Mistake(
        "expected ',' or '}'",
        "expected ',' or '}' here",
        "put a value in quotes if it holds any of , : [ ] { }",
    ),
    Mistake("node content, .*stream end", "a bracket is never closed"),
    Mistake(
        "node content, .*'-'",
        "a list item cannot begin inside brackets",
        "separate the items with commas",
    ),
    Mistake("node content, .*','", "a value is missing before this ','"),
    Mistake("node content, .*'[?:]'", "'{at}' cannot stand here", QUOTE),
    Mistake(
        "scanning a directive|YAML directive|YAML document",
        "a line cannot begin with '%' here",
        QUOTE,
        at_context=True,
    ),
    Mistake("found .*'[\\]}]'", "this '{at}' closes nothing"),
    Mistake("node content", "a value is missing before this"),
    Mistake("content after document", "nothing can stand on a line of ...", QUOTE),
    Mistake("found .*','", "',' cannot stand here", QUOTE),
    Mistake("block end>, .*'-'", "a list item cannot stand among the keys of a mapping", LINE_UP),
    Mistake(
        "block collection expected <block end>, .*'\\?'",
        "a key cannot stand among list items",
        LINE_UP,
    ),
    Mistake("block end>, .*start>'", "the indentation of this line matches no line above", LINE_UP),
    Mistake(
        "block end>|document start>",
        "this does not continue what stands before it",
        "check the quotes and the indentation before it",
    ),
    Mistake(
        "block scalar .*indicator|block scalar .*comment",
        "'{at}' cannot stand after | or >",
        "begin the text on the next line",
    ),
    Mistake(
        "in a block scalar",
        "an empty line is indented deeper than the text below it",
        "remove the blanks of the empty line",
    ),
)


def explain(error: MarkedYAMLError, places: Places, start: int) -> Problem:
    """The problem that a syntax error is, in a text that was read from index `start` on."""
    context, problem = error.context or "", error.problem or ""
    mark = error.problem_mark or error.context_mark
    context_mark = error.context_mark or mark
    at, context_at = start + mark.index, start + context_mark.index
    return (
        (
            directive(places, start)
            if "<document start>" in problem or "YAML" in problem or "directive" in context
            else None
        )
        or odd_indent(places, at)
        or odd_indent(places, context_at)
        or unquoted_reference(places, at)
        or missing_space(places, at if "mapping values" in problem else context_at, problem)
        or misplaced_colon(places, at, problem)
        or (no_key(places, context_at) if "expected ':'" in problem else None)
        or known_mistake(f"{context} {problem}", places, at, context_at)
    )


def line_at(places: Places, index: int) -> tuple[int, str]:
    """The start and the text of the line that holds `index`."""
    start = places.starts[places.line_number(index) - 1]
    return start, places.source.text[start : places.line_end(index)]


def line_above(places: Places, index: int) -> tuple[int, str]:
    """The nearest line above `index` that is not blank, as its start and text; the line itself where there is none."""
    start, _ = line_at(places, index)
    above = places.source.text[:start].rstrip()
    return line_at(places, len(above) - 1 if above else index)


def directive(places: Places, start: int) -> Problem | None:
    """A line before the document that begins with %."""
    found = DIRECTIVE.match(places.source.text, start)
    if found is None:
        return None
    help = "remove the line: files are YAML 1.2 without tags"
    return Problem(
        "syntax",
        f"{cut(found[1].strip())} is not allowed",
        origin=places.origin(*found.span(1)),
        help=help,
    )


def odd_indent(places: Places, index: int) -> Problem | None:
    """A tab or another blank that is no space, where only spaces are blanks."""
    start, text = line_at(places, index)
    found = ODD_BLANK.match(text)
    if found is not None:
        name = "a tab" if found[1] == "\t" else f"the blank U+{ord(found[1]):04X}"
        origin = places.origin(start + found.start(1), start + found.end(1))
        return Problem(
            "syntax", f"{name} in the indentation", origin=origin, help="indent with spaces"
        )
    if places.source.text[index : index + 1] == "\t":
        return Problem(
            "syntax", "a tab outside of quotes", origin=places.point(index), help="write spaces"
        )
    return None


def unquoted_reference(places: Places, index: int) -> Problem | None:
    """An unquoted `${...}` inside of brackets, where YAML takes its brace for a mapping."""
    text = places.source.text
    if text[max(index - 1, 0) : index + 1] != "${":
        return None
    word = WORD_START.search(text[max(0, index - 200) : index])
    begin = index - len(word[0]) if word else index - 1
    close = text.find("}", index, places.line_end(index))
    end = close + 1 if close >= 0 else index + 1
    help = f'write "{cut(text[begin:end])}" in quotes' if close >= 0 else QUOTE
    return Problem(
        "syntax",
        "${...} needs quotes inside of brackets",
        origin=places.origin(begin, end),
        help=help,
    )


def missing_space(places: Places, index: int, problem: str) -> Problem | None:
    """`steps:100`, which is one word to YAML, in the line of `index` or above it."""
    if "mapping values" not in problem and "expected ':'" not in problem:
        return None
    for start, text in (line_at(places, index), line_above(places, index)):
        found = NO_SPACE.fullmatch(text)
        if found is not None:
            origin = places.origin(start + found.start(1), start + len(text))
            return Problem(
                "syntax",
                f"no space after '{cut(found[1])}'",
                origin=origin,
                help=f"write {cut(f'{found[1]} {found[2]}')}",
            )
    return None


def misplaced_colon(places: Places, index: int, problem: str) -> Problem | None:
    """A `key:` where none can begin: after another, below a word, or indented too deep."""
    if "mapping values" not in problem:
        return None
    start, text = line_at(places, index)
    if KEY.match(text[: index - start]):
        return Problem(
            "syntax", "a second ': ' in one value", origin=places.point(index), help=QUOTE
        )
    above_start, above = line_above(places, index)
    if not KEY_OR_ITEM.match(above):
        return no_key(places, above_start)
    origin = places.origin(start + len(text) - len(text.lstrip()), index)
    return Problem(
        "syntax",
        "this line is indented deeper than the line above allows",
        origin=origin,
        help=LINE_UP,
    )


def no_key(places: Places, index: int) -> Problem:
    """A line that is neither an entry nor an item; of two words, the first was to be a key."""
    start, text = line_at(places, index)
    content = text.partition(" #")[0].strip()
    found = TWO_WORDS.fullmatch(content)
    begin = start + len(text) - len(text.lstrip())
    help = f"write {cut(f'{found[1]}: {found[2]}')}" if found else None
    return Problem("syntax", NO_KEY, origin=places.origin(begin, begin + len(content)), help=help)


def known_mistake(error: str, places: Places, at: int, context_at: int) -> Problem:
    """The first row of MISTAKES that fits, or the error as ruamel words it."""
    mistake = next((mistake for mistake in MISTAKES if re.search(mistake.pattern, error)), None)
    if mistake is None:
        return Problem("syntax", f"not YAML: {error.strip()}", origin=places.point(at))
    index = context_at if mistake.at_context else at
    message = mistake.message.replace("{at}", places.source.text[index : index + 1])
    if "expected ',' or" not in error or mistake.at_context:
        return Problem(mistake.code, message, origin=places.point(index), help=mistake.help)
    opened = places.point(context_at)
    help = (
        mistake.help
        if opened.line == places.line_number(at)
        else f"close the bracket of line {opened.line}"
    )
    return Problem(
        mistake.code,
        message,
        origin=places.point(at),
        help=help,
        related=(Related(opened, "the bracket"),),
    )
