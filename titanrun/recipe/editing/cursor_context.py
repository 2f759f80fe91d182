"""Meaning of a cursor position in the text of a recipe, which may be incomplete while it is edited.

The text is scanned line by line, so that a position has a path even if nothing can be parsed.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import DataPath
from titanrun.recipe.editing.block_scanner import BlockScanner, parse_block_line
from titanrun.recipe.editing.flow_scanner import FlowPosition, scan_flow

RecipeFormat = Literal["yaml", "toml"]
CursorKind = Literal["key", "value", "reference", "table"]

TOML_TABLE = re.compile(r"[ \t]*(?P<open>\[\[?)(?P<path>[^\]#\n]*)(?P<close>\]?\]?)")
TOML_KEY = re.compile(r"[ \t]*(?P<key>[\w.\"'+-]+)[ \t]*=")
FLOW_START = re.compile(r"[ ]*[\[{]")
WORD_BEFORE = re.compile(r"[\w+:/.-]*$")
OPEN_REFERENCE = re.compile(r"\$\{(?P<word>[^}\n]*)$")


@dataclass(frozen=True, slots=True)
class CursorContext:
    """What belongs at a position.

    `path` is the mapping that a key belongs to, or the path of the value itself. `word` is the
    beginning of the word at the cursor, which starts at offset `start`. `siblings` are the scalars
    of the mapping around it, as written.
    """

    kind: CursorKind
    path: DataPath
    word: str
    start: int
    siblings: dict[str, str] = field(default_factory=dict)


def find_cursor_context(
    text: str, offset: int, recipe_format: RecipeFormat
) -> CursorContext | None:
    """Return what belongs at `offset`, or None inside a comment."""
    line_start = text.rfind("\n", 0, offset) + 1
    before = text[line_start:offset]
    if is_in_comment(before):
        return None
    reference = OPEN_REFERENCE.search(before)
    if reference is not None:
        return CursorContext("reference", (), reference["word"], offset - len(reference["word"]))
    if recipe_format == "toml":
        return find_toml_context(text, line_start, offset)
    return find_yaml_context(text, offset)


def is_in_comment(before: str) -> bool:
    """Return whether a line has begun a comment before the cursor."""
    quote = ""
    for index, letter in enumerate(before):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'" and (index == 0 or before[index - 1] in " \t:[{,=-"):
            quote = letter
        elif letter == "#" and (index == 0 or before[index - 1] in " \t"):
            return True
    return False


def find_yaml_context(text: str, offset: int) -> CursorContext:
    """Return the context in a YAML text."""
    lines = text[:offset].split("\n")
    first, position = find_open_flow(lines)
    scanner = BlockScanner()
    scanner.read_lines(lines[:first])
    current = parse_block_line(lines[first])
    scanner.read_line(current)
    path, word = scanner.path, find_word_before(lines[-1])
    if position is not None:
        return build_flow_context(position, path, word, offset)
    # the mapping goes on below the cursor
    scanner.read_lines(text.split("\n")[len(lines) :])
    if current.key is None:
        siblings = scanner.scalars.get(path, {})
        return CursorContext("key", path, word, offset - len(word), siblings)
    word = current.value.lstrip()
    siblings = scanner.scalars.get(path[:-1], {})
    return CursorContext("value", path, word, offset - len(word), siblings)


def find_open_flow(lines: list[str]) -> tuple[int, FlowPosition | None]:
    """Return the line on which the entry at the end begins, and the position in its brackets.

    The position is None if the end of `lines` is not inside brackets.
    """
    for index in range(len(lines) - 1, -1, -1):
        entry = parse_block_line(lines[index])
        if FLOW_START.match(entry.value):
            inside = "\n".join([entry.value.lstrip(), *lines[index + 1 :]])
            position = scan_flow(inside, ":")
            if position is not None:
                return index, position
        if entry.key is not None:
            break
    return len(lines) - 1, None


def find_word_before(line: str) -> str:
    """Return the word at the end of a line; it may be empty."""
    found = WORD_BEFORE.search(line)
    return "" if found is None else found[0]


def build_flow_context(
    position: FlowPosition, holder: DataPath, word: str, offset: int
) -> CursorContext:
    """Return the context inside brackets."""
    return CursorContext(
        "value" if position.is_value else "key",
        (*holder, *position.path),
        word,
        offset - len(word),
        position.siblings,
    )


def find_toml_context(text: str, line_start: int, offset: int) -> CursorContext:
    """Return the context in a TOML text."""
    before = text[line_start:offset]
    table = TOML_TABLE.match(before)
    if table is not None and not table["close"]:
        head, _, word = table["path"].lstrip().rpartition(".")
        return CursorContext("table", parse_dotted(head), word, offset - len(word))
    holder = find_toml_table(text[:line_start])
    siblings = collect_toml_scalars(text, line_start)
    entry, begin = find_toml_entry(text, line_start, offset)
    if entry is None:
        head, _, word = before.strip().rpartition(".")
        path = (*holder, *parse_dotted(head))
        return CursorContext("key", path, word, offset - len(word), {} if head else siblings)
    path = (*holder, *parse_dotted(entry["key"]))
    value = text[begin:offset].lstrip()
    position = scan_flow(value, "=")
    if position is not None:
        return build_flow_context(position, path, find_word_before(before), offset)
    return CursorContext("value", path, value, offset - len(value), siblings)


def find_toml_entry(text: str, line_start: int, offset: int) -> tuple[re.Match[str] | None, int]:
    """Return the key whose value holds the cursor, and the offset at which the value begins."""
    is_cursor_line = True
    while True:
        line_end = text.find("\n", line_start, offset)
        entry = TOML_KEY.match(text[line_start : offset if line_end < 0 else line_end])
        if entry is not None:
            begin = line_start + entry.end()
            is_open = scan_flow(text[begin:offset].lstrip(), "=") is not None
            return (entry, begin) if is_cursor_line or is_open else (None, offset)
        if line_start == 0:
            return None, offset
        is_cursor_line = False
        line_start = text.rfind("\n", 0, line_start - 1) + 1


def find_toml_table(text: str) -> DataPath:
    """Return the path of the last table header; an array of tables has the index of its last."""
    path: DataPath = ()
    last_index: dict[DataPath, int] = {}
    for line in text.split("\n"):
        table = TOML_TABLE.match(line)
        if table is None or not table["close"]:
            continue
        path = parse_dotted(table["path"])
        if table["open"] == "[[":
            last_index[path] = last_index.get(path, -1) + 1
            path = (*path, last_index[path])
    return path


def collect_toml_scalars(text: str, line_start: int) -> dict[str, str]:
    """Return the scalars of the table around a line, by key."""
    above = text[:line_start].split("\n")
    below = text[line_start:].split("\n")[1:]
    found: dict[str, str] = {}
    for lines in (reversed(above), below):
        for line in lines:
            if TOML_TABLE.match(line):
                break
            entry = TOML_KEY.match(line)
            if entry is not None:
                value = line[entry.end() :].partition(" #")[0].strip(" \"'")
                found.setdefault(entry["key"].strip("\"'"), value)
    return found


def parse_dotted(text: str) -> DataPath:
    """Return the steps of a dotted key; empty if it is not one."""
    plain = text.strip().replace('"', "").replace("'", "")
    try:
        return tuple(parse_path(plain)) if plain else ()
    except PathSyntaxError:
        return ()
