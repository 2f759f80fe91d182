"""Update of a recipe to current field names by edits of single spans.

Comments and everything else stay byte for byte.
"""

from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound, SourceText, problem_error
from titanrun.config.read_source import read_source
from titanrun.config.renames import RenameResult, rename_former_keys
from titanrun.config.text_edits import apply_text_edits as edited_text
from titanrun.config.text_edits import build_word_fix
from titanrun.config.tree import Node, PartialReadError, to_plain_data
from titanrun.recipe import builtins
from titanrun.recipe.editing.autofix import parse_source, write_fixed_file
from titanrun.recipe.migrate.foreign_files import check_has_recipe_keys, check_not_foreign
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.read_recipe import compose_recipe, load_listed_plugins
from titanrun.recipe.resolving.resolve import check_version

# one edit renames one occurrence; a TOML table may be opened by many headers
MOST_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class RecipeUpdate:
    """A recipe before and after the update, and warnings about what was renamed."""

    before: SourceText
    after: str
    renames: tuple[Problem, ...]

    @property
    def diff(self) -> str:
        """Edits as a patch."""
        name = self.before.name
        lines = unified_diff(
            self.before.text.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            name,
            name,
        )
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def build_recipe_update(file: str) -> RecipeUpdate:
    """Return the changes needed in `file` alone, not in what it extends.

    Raises:
        ProblemsFound: If the recipe cannot be read or updated.
    """
    builtins.register_builtins()
    root = read_source(file)
    check_version(root)
    check_not_foreign(root)
    load_listed_plugins(root)
    check_has_recipe_keys(root)
    known = to_plain_data(compose_readable_part(file))
    first = rename_former_keys(Recipe, root, known)
    conflicts = [problem for problem in first.problems if problem.code == "conflict"]
    if conflicts:
        raise ProblemsFound(conflicts)
    source = root.origin.source
    return RecipeUpdate(source, replace_former_names(source, first, known), first.problems)


def compose_readable_part(file: str) -> Node:
    """Return the readable part of the recipe over what it extends, which names its components."""
    try:
        return compose_recipe(file)
    except PartialReadError as part:
        return part.root


def replace_former_names(source: SourceText, first: RenameResult, known: object) -> str:
    """Return the text with every former name replaced.

    Raises:
        ProblemsFound: If that would change more than names.
    """
    text = source.text
    now = first
    for _ in range(MOST_ROUNDS):
        former = now.former_keys[0] if now.former_keys else None
        fix = build_word_fix(former.origin, str(former.path[-1]), former.name) if former else None
        if fix is None:
            break
        text = edited_text(text, [fix])
        try:
            now = rename_former_keys(Recipe, parse_source(SourceText(source.name, text)), known)
        except ProblemsFound:
            break
    if now.former_keys or to_plain_data(now.tree) != to_plain_data(first.tree):
        message = (
            "this key cannot be renamed without changing something else: "
            "its text is used in another place too"
        )
        hint = f"write '{first.former_keys[0].name}' by hand"
        raise problem_error(
            "deprecated",
            message,
            path=first.former_keys[0].path,
            origin=first.former_keys[0].origin,
            hint=hint,
        )
    return text


def write_update(found: RecipeUpdate) -> None:
    """Replace the file with the new text. Raise ProblemsFound if it changed since."""
    write_fixed_file(Path(found.before.name), found.before, found.after)
