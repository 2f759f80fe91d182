"""Brings a recipe up to date by edits of single spans, so that comments and everything else stay byte for byte."""

import codecs
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path

from titanrun.config.compose import compose
from titanrun.config.places import Places
from titanrun.config.problems import Origin, Problem, ProblemsFound, SourceText, fail
from titanrun.config.renames import Former, Renamed, renamed
from titanrun.config.source import FORMATS, read_source, read_text
from titanrun.config.tree import Node, ReadInPart, plain
from titanrun.recipe import catalogue, menu
from titanrun.recipe.reading import plugin_names
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import check_version

# one edit renames one occurrence; a TOML table may be opened by many headers
MOST_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Update:
    """A recipe before and after, and the warnings about what was renamed."""

    before: SourceText
    after: str
    renames: tuple[Problem, ...]

    @property
    def diff(self) -> str:
        """The edits, as a patch."""
        name = self.before.name
        lines = unified_diff(self.before.text.splitlines(keepends=True), self.after.splitlines(keepends=True), name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def update(file: str) -> Update:
    """What has to change in `file` alone, not in what it extends. Raises ProblemsFound."""
    menu.open_menu()
    root = read_source(file)
    check_version(root)
    menu.load_plugins(plugin_names(root))
    known = plain(composed(file))
    first = renamed(Recipe, root, known)
    conflicts = [problem for problem in first.problems if problem.code == "conflict"]
    if conflicts:
        raise ProblemsFound(conflicts)
    source = root.origin.source
    return Update(source, edited(source, first, known), first.problems)


def composed(file: str) -> Node:
    """The recipe over what it extends, which says what component stands where."""
    try:
        return compose(file, catalogue.shelves())
    except ReadInPart as part:
        return part.root


def edited(source: SourceText, first: Renamed, known: object) -> str:
    """The text with every former name replaced. Raises ProblemsFound where that would change more than names."""
    text = source.text
    format = FORMATS[Path(source.name).suffix.lower()]
    now = first
    for _ in range(MOST_ROUNDS):
        if not now.found:
            break
        text = with_name(text, now.found[0])
        try:
            now = renamed(Recipe, read_text(SourceText(source.name, text), format), known)
        except ProblemsFound:
            break
    if now.found or plain(now.tree) != plain(first.tree):
        origin = first.found[0].origin
        message = "this key cannot be renamed without changing something else, since its text is used in another place too"
        raise fail("deprecated", message, path=first.found[0].path, origin=origin, help=f"write '{first.found[0].name}' by hand")
    return text


def with_name(text: str, former: Former) -> str:
    """The text with one key replaced."""
    start, end = span(text, former.origin)
    return text[:start] + former.name + text[end:]


def span(text: str, origin: Origin) -> tuple[int, int]:
    """The indexes of a place in a text."""
    start = Places(replace(origin.source, text=text)).starts[origin.line - 1] + origin.column - 1
    return start, start + origin.end_column - origin.column


def write(file: str, text: str) -> None:
    """Put `text` in place of the file's own, its byte order mark kept."""
    path = Path(file)
    mark = codecs.BOM_UTF8 if path.read_bytes().startswith(codecs.BOM_UTF8) else b""
    path.write_bytes(mark + text.encode())
