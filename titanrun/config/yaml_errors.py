"""Plain messages for ruamel.yaml's syntax errors, at the place where a person would look."""

import re
from typing import NamedTuple

from ruamel.yaml.error import MarkedYAMLError

from titanrun.config.limits import truncate_for_message
from titanrun.config.problems import Problem, ProblemCode, RelatedLocation
from titanrun.config.references import correct_references
from titanrun.config.text_positions import TextPositions

ODD_BLANK = re.compile("[ \t]*([\t\u00a0\u1680\u2000-\u200b\u202f\u205f\u3000])")
NO_SPACE = re.compile(r"\s*(?:- +)?([A-Za-z_][\w.-]*:)([^\s:/\\].*)")
KEY = re.compile(r".*:(?:\s|$)")
KEY_OR_ITEM = re.compile(r"\s*-(?:\s|$)|.*:(?:\s|$)")
TWO_WORDS = re.compile(r"(?:- +)?([A-Za-z_]\w*)(?: *= *| +)([^\s:#=]+)")
DIRECTIVE = re.compile(r"(?:[ \t]*+(?:#[^\r\n]*+)?+[\r\n])*+(%[^\r\n]*)")
QUOTES = "\"'"
OPENS_VALUE = re.compile(r"(?:[:,\[{-]|^)\s*$")
"""What stands before the quote of a value in its line."""
WORD_REST = re.compile(r"(?:\$\{[^}\n]*\}|[^\s,{}\[\]])*")
WORD_START = re.compile(r"[^\s,\[{]*$")
QUOTE_HINT = "put the value in quotes"
ESCAPE_HINT = "write \\\\ for a backslash, or use single quotes"
ALIGN_HINT = "line it up with the keys it belongs to"
NO_KEY_MESSAGE = "this line is neither `key: value` nor a list item"


class YamlErrorMessage(NamedTuple):
    """Message for an error whose context and problem match `pattern`.

    `{at}` is the character at its location.
    """

    pattern: str
    message: str
    hint: str | None = None
    is_at_context: bool = False
    code: ProblemCode = "syntax"


YAML_ERROR_MESSAGES = (
    YamlErrorMessage(
        "quoted scalar .*end of stream", "this quote is not closed", is_at_context=True
    ),
    YamlErrorMessage(
        "quoted scalar .*document separator",
        "this quote is not closed before a line of --- or ...",
        is_at_context=True,
    ),
    YamlErrorMessage("unknown escape character", "'\\{at}' is not an escape", ESCAPE_HINT),
    YamlErrorMessage("escape sequence of", "this escape has too few digits", ESCAPE_HINT),
    YamlErrorMessage("number too large", "this escape is not a valid character", ESCAPE_HINT),
    YamlErrorMessage(
        "an alias", "no name follows the '*' of an alias", QUOTE_HINT, is_at_context=True
    ),
    YamlErrorMessage(
        "an anchor", "no name follows the '&' of an anchor", QUOTE_HINT, is_at_context=True
    ),
    YamlErrorMessage(
        "an? tag$|an? tag |tag handle",
        "this tag is not allowed",
        'remove it, or put the value in quotes if the "!" belongs to it',
        is_at_context=True,
        code="tag",
    ),
    YamlErrorMessage(
        "sequence entries are not allowed",
        "a list item cannot begin here",
        "begin the list on the next line, or write [a, b]",
    ),
    YamlErrorMessage("mapping keys are not allowed", "unexpected '?'", QUOTE_HINT),
    YamlErrorMessage("cannot start any token", "a value cannot begin with '{at}'", QUOTE_HINT),
    YamlErrorMessage("expected ',' or .*end>'", "this bracket is not closed", is_at_context=True),
    YamlErrorMessage(
        "expected ',' or ']'",
        "expected ',' or ']' here",
        "put a value in quotes if it holds any of , : [ ] { }",
    ),
    YamlErrorMessage(
        "expected ',' or '}'",
        "expected ',' or '}' here",
        "put a value in quotes if it holds any of , : [ ] { }",
    ),
    YamlErrorMessage("node content, .*stream end", "a bracket is not closed"),
    YamlErrorMessage(
        "node content, .*'-'",
        "a list item cannot begin inside brackets",
        "separate the items with commas",
    ),
    YamlErrorMessage("node content, .*','", "a value is missing before this ','"),
    YamlErrorMessage("node content, .*'[?:]'", "unexpected '{at}'", QUOTE_HINT),
    YamlErrorMessage(
        "scanning a directive|YAML directive|YAML document",
        "a line cannot begin with '%' here",
        QUOTE_HINT,
        is_at_context=True,
    ),
    YamlErrorMessage("found .*'[\\]}]'", "this '{at}' has no opening bracket"),
    YamlErrorMessage("node content", "a value is missing before this"),
    YamlErrorMessage("content after document", "a line of ... must have no other text", QUOTE_HINT),
    YamlErrorMessage("found .*','", "unexpected ','", QUOTE_HINT),
    YamlErrorMessage(
        "block end>, .*'-'", "a list item cannot follow the keys of a mapping", ALIGN_HINT
    ),
    YamlErrorMessage(
        "block collection expected <block end>, .*'\\?'",
        "a key cannot follow list items",
        ALIGN_HINT,
    ),
    YamlErrorMessage(
        "block end>, .*start>'", "the indentation of this line matches no line above", ALIGN_HINT
    ),
    YamlErrorMessage(
        "block end>|document start>",
        "this does not continue the text before it",
        "check the quotes and the indentation before it",
    ),
    YamlErrorMessage(
        "block scalar .*indicator|block scalar .*comment",
        "'{at}' cannot follow | or >",
        "begin the text on the next line",
    ),
    YamlErrorMessage(
        "in a block scalar",
        "an empty line is indented deeper than the text below it",
        "remove the blanks of the empty line",
    ),
)


def explain_yaml_error(error: MarkedYAMLError, positions: TextPositions, start: int) -> Problem:
    """Return the problem for a syntax error in a text that was read from index `start` on."""
    context, problem = error.context or "", error.problem or ""
    mark = error.problem_mark or error.context_mark
    context_mark = error.context_mark or mark
    at, context_at = start + mark.index, start + context_mark.index
    return (
        (
            find_directive_problem(positions, start)
            if "<document start>" in problem or "YAML" in problem or "directive" in context
            else None
        )
        or find_open_quote_problem(positions, at)
        or find_indent_problem(positions, at)
        or find_indent_problem(positions, context_at)
        or find_unquoted_reference_problem(positions, at)
        or find_missing_space_problem(
            positions, at if "mapping values" in problem else context_at, problem
        )
        or find_misplaced_colon_problem(positions, at, problem)
        or (
            build_missing_colon_problem(positions, context_at)
            if "expected ':'" in problem
            else None
        )
        or build_yaml_problem(f"{context} {problem}", positions, at, context_at)
    )


def get_line_at(positions: TextPositions, index: int) -> tuple[int, str]:
    """Return the start and the text of the line that contains `index`."""
    start = positions.line_starts[positions.get_line_number(index) - 1]
    return start, positions.source.text[start : positions.get_line_end(index)]


def get_line_above(positions: TextPositions, index: int) -> tuple[int, str]:
    """Return the start and text of the nearest line above `index` that is not blank.

    Return the line of `index` itself if there is no such line.
    """
    start, _ = get_line_at(positions, index)
    above = positions.source.text[:start].rstrip()
    return get_line_at(positions, len(above) - 1 if above else index)


def find_directive_problem(positions: TextPositions, start: int) -> Problem | None:
    """Return the problem of a line before the document that begins with %."""
    found = DIRECTIVE.match(positions.source.text, start)
    if found is None:
        return None
    hint = "remove the line: files are YAML 1.2 without tags"
    return Problem(
        "syntax",
        f"{truncate_for_message(found[1].strip())} is not allowed",
        origin=positions.to_origin(*found.span(1)),
        hint=hint,
    )


def find_open_quote_problem(positions: TextPositions, index: int) -> Problem | None:
    """Return the problem of a quote in a line above that only closed right before `index`."""
    text = positions.source.text
    closing = len(text[:index].rstrip()) - 1
    if closing < 1 or text[closing] not in QUOTES:
        return None
    opening = text.rfind(text[closing], 0, closing)
    start, line = get_line_at(positions, max(opening, 0))
    if opening < 0 or start + len(line) >= closing or not OPENS_VALUE.search(text[start:opening]):
        return None
    closed = RelatedLocation(positions.to_point_origin(closing), "closes it")
    return Problem(
        "syntax",
        "this quote is not closed in its line",
        origin=positions.to_point_origin(opening),
        hint=f"put a {text[closing]} behind the value",
        related=(closed,),
    )


def find_indent_problem(positions: TextPositions, index: int) -> Problem | None:
    """Return the problem of a tab or other blank where only spaces are allowed."""
    start, text = get_line_at(positions, index)
    found = ODD_BLANK.match(text)
    if found is not None:
        name = "a tab" if found[1] == "\t" else f"the blank U+{ord(found[1]):04X}"
        origin = positions.to_origin(start + found.start(1), start + found.end(1))
        return Problem(
            "syntax", f"{name} in the indentation", origin=origin, hint="indent with spaces"
        )
    if positions.source.text[index : index + 1] == "\t":
        return Problem(
            "syntax",
            "a tab outside of quotes",
            origin=positions.to_point_origin(index),
            hint="write spaces",
        )
    return None


def find_unquoted_reference_problem(positions: TextPositions, index: int) -> Problem | None:
    """Return the problem of an unquoted `${...}` in brackets, whose brace starts a mapping."""
    text = positions.source.text
    if text[max(index - 1, 0) : index + 1] != "${":
        return None
    word = WORD_START.search(text[max(0, index - 200) : index])
    assert word is not None, "it also matches no character"
    begin = index - len(word[0])
    close = text.find("}", index, positions.get_line_end(index))
    end = close + 1 if close >= 0 else index + 1
    rest = WORD_REST.match(text, end)
    whole = correct_references(text[begin : rest.end() if rest else end])
    hint = f'write "{truncate_for_message(whole)}" in quotes' if close >= 0 else QUOTE_HINT
    return Problem(
        "syntax",
        "${...} needs quotes inside of brackets",
        origin=positions.to_origin(begin, end),
        hint=hint,
    )


def find_missing_space_problem(
    positions: TextPositions, index: int, problem: str
) -> Problem | None:
    """Return the problem of `steps:100`, one word in YAML, in the line of `index` or above."""
    if "mapping values" not in problem and "expected ':'" not in problem:
        return None
    for start, text in (get_line_at(positions, index), get_line_above(positions, index)):
        found = NO_SPACE.fullmatch(text)
        if found is not None:
            origin = positions.to_origin(start + found.start(1), start + len(text))
            return Problem(
                "syntax",
                f"no space after '{truncate_for_message(found[1])}'",
                origin=origin,
                hint=f"write {truncate_for_message(f'{found[1]} {found[2]}')}",
            )
    return None


def find_misplaced_colon_problem(
    positions: TextPositions, index: int, problem: str
) -> Problem | None:
    """Return the problem of a misplaced `key:`: after another, below a word, or too deep."""
    if "mapping values" not in problem:
        return None
    start, text = get_line_at(positions, index)
    if KEY.match(text[: index - start]):
        return Problem(
            "syntax",
            "a second ': ' in one value",
            origin=positions.to_point_origin(index),
            hint=QUOTE_HINT,
        )
    above_start, above = get_line_above(positions, index)
    if not KEY_OR_ITEM.match(above):
        return build_missing_colon_problem(positions, above_start)
    origin = positions.to_origin(start + len(text) - len(text.lstrip()), index)
    return Problem(
        "syntax",
        "this line is indented deeper than the line above allows",
        origin=origin,
        hint=ALIGN_HINT,
    )


def build_missing_colon_problem(positions: TextPositions, index: int) -> Problem:
    """Build the problem of a line that is neither an entry nor an item.

    If it has two words, the first one was meant as the key.
    """
    start, text = get_line_at(positions, index)
    content = text.partition(" #")[0].strip()
    found = TWO_WORDS.fullmatch(content)
    begin = start + len(text) - len(text.lstrip())
    hint = f"write {truncate_for_message(f'{found[1]}: {found[2]}')}" if found else None
    return Problem(
        "syntax", NO_KEY_MESSAGE, origin=positions.to_origin(begin, begin + len(content)), hint=hint
    )


def build_yaml_problem(
    error: str, positions: TextPositions, problem_index: int, context_index: int
) -> Problem:
    """Build the problem from the matching YAML_ERROR_MESSAGES entry, or with ruamel's message."""
    mistake = next(
        (mistake for mistake in YAML_ERROR_MESSAGES if re.search(mistake.pattern, error)), None
    )
    if mistake is None:
        return Problem(
            "syntax", f"not YAML: {error.strip()}", origin=positions.to_point_origin(problem_index)
        )
    index = context_index if mistake.is_at_context else problem_index
    message = mistake.message.replace("{at}", positions.source.text[index : index + 1])
    if "expected ',' or" not in error or mistake.is_at_context:
        return Problem(
            mistake.code, message, origin=positions.to_point_origin(index), hint=mistake.hint
        )
    opened = positions.to_point_origin(context_index)
    hint = (
        mistake.hint
        if opened.line == positions.get_line_number(problem_index)
        else f"close the bracket of line {opened.line}"
    )
    return Problem(
        mistake.code,
        message,
        origin=positions.to_point_origin(problem_index),
        hint=hint,
        related=(RelatedLocation(opened, "the bracket"),),
    )
