"""Places in files that a recipe refers to: extended files, keys, and the source of components."""

from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getsourcefile, getsourcelines
from pathlib import Path

from titanrun.config.base import ComponentConfig
from titanrun.config.compose import find_in_named_folder, resolve_base_path
from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import Origin
from titanrun.config.references import REFERENCE_OR_ESCAPE
from titanrun.config.tree import Node, find_node
from titanrun.recipe import builtins
from titanrun.recipe.editing.completions import EXTENDS
from titanrun.recipe.editing.cursor_context import find_cursor_context
from titanrun.recipe.editing.examiner import Document, find_path_at, strip_stage
from titanrun.recipe.editing.hover import find_named_component
from titanrun.recipe.reference.shipped_recipes import get_extends_roots


@dataclass(frozen=True, slots=True)
class Target:
    """Place in a file; line and columns count from 1."""

    path: str
    line: int = 1
    column: int = 1
    end_column: int = 1


@dataclass(frozen=True, slots=True)
class ExtendedFile:
    """A file that a recipe extends, and the columns, from 1, that name it."""

    line: int
    column: int
    end_column: int
    path: str


def find_definition(document: Document, line: int, column: int) -> Target | None:
    """Return where a file, a reference or a component is defined, or None.

    The line and the column count from 1.
    """
    builtins.register_builtins()
    for named in iter_extended_files(document):
        if named.line == line and named.column <= column <= named.end_column:
            return Target(named.path)
    found = find_path_at(document, line, column)
    if found is None or document.tree is None:
        return None
    target = find_reference_target(document.tree, document.text, line, column)
    component = find_named_component(document, strip_stage(found[0]))
    if target is None and component is not None:
        return find_class_source(component)
    return target


def iter_extended_files(document: Document) -> Iterator[ExtendedFile]:
    """Yield the files under `extends` that exist."""
    offset = 0
    for number, line in enumerate(document.text.split("\n"), start=1):
        for start, end, word in iter_words(line):
            context = find_cursor_context(document.text, offset + end, document.format)
            if context is None or context.kind != "value" or context.path[:1] != (EXTENDS,):
                continue
            file = find_in_named_folder(word, get_extends_roots())
            file = file or resolve_base_path(document.path, word)
            if Path(file).is_file():
                yield ExtendedFile(number, start + 1, end + 1, file)
        offset += len(line) + 1


def iter_words(line: str) -> Iterator[tuple[int, int, str]]:
    """Yield the words of a line that may be file names, with their columns from 0."""
    start = None
    for index, letter in enumerate(f"{line} "):
        if letter in " \t,[]\"'\r":
            if start is not None and "." in line[start:index]:
                yield start, index, line[start:index]
            start = None
        elif start is None:
            start = index


def find_reference_target(tree: Node, text: str, line: int, column: int) -> Target | None:
    """Return the key that `${section.key}` at a position refers to."""
    for found in REFERENCE_OR_ESCAPE.finditer(text.split("\n")[line - 1]):
        if found["inner"] is not None and found.start() <= column - 1 <= found.end():
            try:
                node = find_node(tree, tuple(parse_path(found["inner"])))
            except PathSyntaxError:
                return None
            place = None if node is None else node.key or node.origin
            return None if place is None else to_target(place)
    return None


def to_target(origin: Origin) -> Target:
    """Return a location in a file as a target."""
    return Target(origin.source.name, origin.line, origin.column, origin.end_column)


def find_class_source(component: type[ComponentConfig]) -> Target | None:
    """Return the config class of a component in its source."""
    try:
        file, line = getsourcefile(component), getsourcelines(component)[1]
    except (OSError, TypeError):
        return None
    return None if file is None else Target(file, line)
