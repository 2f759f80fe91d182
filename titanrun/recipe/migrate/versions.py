"""Brings a recipe up to date by edits of single spans, so that comments and everything else stay byte for byte."""

from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from titanrun.config.compose import compose
from titanrun.config.fixes import edited as edited_text
from titanrun.config.fixes import rewritten
from titanrun.config.problems import Problem, ProblemsFound, SourceText, fail
from titanrun.config.renames import Renamed, renamed
from titanrun.config.source import read_source
from titanrun.config.tree import Node, ReadInPart, plain
from titanrun.recipe import catalogue, menu
from titanrun.recipe.fixing import read, write_back
from titanrun.recipe.migrate.programs import program_of
from titanrun.recipe.reading import load_listed_plugins
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
        lines = unified_diff(
            self.before.text.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            name,
            name,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def update(file: str) -> Update:
    """What has to change in `file` alone, not in what it extends. Raises ProblemsFound."""
    menu.open_menu()
    root = read_source(file)
    check_version(root)
    refuse_foreign(root)
    load_listed_plugins(root)
    known = plain(composed(file))
    first = renamed(Recipe, root, known)
    conflicts = [problem for problem in first.problems if problem.code == "conflict"]
    if conflicts:
        raise ProblemsFound(conflicts)
    source = root.origin.source
    return Update(source, edited(source, first, known), first.problems)


def refuse_foreign(root: Node) -> None:
    """Raises for a configuration of another program."""
    program = program_of(plain(root))
    if program:
        name = root.origin.source.name
        message = f"this is no recipe: it looks like a configuration of {program}"
        raise fail(
            "usage", message, origin=root.origin, help=f"titanrun migrate --from {program} {name}"
        )


def composed(file: str) -> Node:
    """The recipe over what it extends, which says what component stands where."""
    try:
        return compose(file, catalogue.shelves())
    except ReadInPart as part:
        return part.root


def edited(source: SourceText, first: Renamed, known: object) -> str:
    """The text with every former name replaced. Raises ProblemsFound where that would change more than names."""
    text = source.text
    now = first
    for _ in range(MOST_ROUNDS):
        former = now.found[0] if now.found else None
        fix = rewritten(former.origin, str(former.path[-1]), former.name) if former else None
        if fix is None:
            break
        text = edited_text(text, [fix])
        try:
            now = renamed(Recipe, read(SourceText(source.name, text)), known)
        except ProblemsFound:
            break
    if now.found or plain(now.tree) != plain(first.tree):
        message = "this key cannot be renamed without changing something else, since its text is used in another place too"
        help = f"write '{first.found[0].name}' by hand"
        raise fail(
            "deprecated", message, path=first.found[0].path, origin=first.found[0].origin, help=help
        )
    return text


def write(found: Update) -> None:
    """Put the new text in place of the file's own. Raises ProblemsFound."""
    write_back(Path(found.before.name), found.before, found.after)
