"""Migrates a configuration of another program: the recipe, and what became of every key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from titanrun.config.problems import Problem, ProblemsFound, SourceText
from titanrun.config.source import read_text
from titanrun.recipe import menu
from titanrun.recipe.migrate.entries import Written
from titanrun.recipe.migrate.places import data_of, is_required, path_in
from titanrun.recipe.migrate.plan import Item, placements, plan
from titanrun.recipe.migrate.sheet import recipe_text
from titanrun.recipe.migrate.tool import Tool
from titanrun.recipe.resolve import Case, examine, further_problems


@dataclass(frozen=True, slots=True)
class Migration:
    """A recipe's text, what became of every key, and what `validate` finds in that recipe."""

    tool: Tool
    text: str
    items: tuple[Item, ...]
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        """0 when every key is mapped, changed or read by nothing, and the recipe validates; else 1."""
        refused = any(item.fate == "refused" for item in self.items)
        return 1 if refused or any(problem.severity == "error" for problem in self.problems) else 0


def migrate(file: str, tool: Tool, *, recipe: str, head: Sequence[str]) -> Migration:
    """The migration of `file`. `recipe` is how problems call the new recipe, `head` its first lines. Raises ProblemsFound."""
    menu.open_menu()
    return migrated(tool.read(file), tool, recipe=recipe, head=head)


def migrated(written: Written, tool: Tool, *, recipe: str, head: Sequence[str]) -> Migration:
    """The migration of entries wherever they come from."""
    items = plan(written, tool)
    while True:
        text = recipe_text(items, written, tool, head=head)
        problems = problems_in(text, recipe)
        settled = [after for item in items if (after := settle(item, items, problems)) is not None]
        if settled == items:
            kept = {
                path_in(data_of(placements(items)), target)
                for item in items
                if item.fate == "refused"
                for target in item.targets
            }
            told = [
                problem
                for problem in problems
                if problem.path not in kept and (*problem.path, "name") not in kept
            ]
            return Migration(tool, text, tuple(items), tuple(told))
        items = settled


def problems_in(text: str, name: str) -> list[Problem]:
    """What `titanrun validate` finds in a recipe."""
    try:
        tree = read_text(SourceText(name, text), "yaml")
    except ProblemsFound as found:
        return list(found.problems)
    case = Case(name)
    try:
        return examine(tree, tree, case)[2]
    except ProblemsFound as error:
        return [*error.problems, *further_problems(tree, error.problems, set(), case)]


def settle(item: Item, items: list[Item], problems: list[Problem]) -> Item | None:
    """The item after what `validate` said: refused where something is not built, left out where nothing reads it."""
    if item.fate == "unread":
        return item
    data = data_of(placements(items))
    paths = {target: path_in(data, target) for target in item.targets}
    for problem in problems:
        about = [target for target, path in paths.items() if path == problem.path]
        if not about or is_required(about[0]):
            continue
        kept = {target: value for target, value in item.targets.items() if target not in about}
        if problem.code == "not-built":
            return replace(item, fate="refused", targets=kept, words=problem.message)
        if problem.code == "no-effect" and item.entry is None:
            return None
        if problem.code == "no-effect":
            return replace(item, fate="unread", words=f"left out: {problem.message}")
    return item
