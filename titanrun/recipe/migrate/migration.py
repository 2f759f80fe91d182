"""Migration of another program's configuration to a recipe, with the outcome of every key."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from titanrun.config.problems import Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.recipe import builtins
from titanrun.recipe.migrate.dataset_mixtures import mix_datasets, tell_left_datasets
from titanrun.recipe.migrate.migration_plan import MigrationItem, iter_placements, plan_migration
from titanrun.recipe.migrate.recipe_writer import format_migrated_recipe
from titanrun.recipe.migrate.source_entries import SourceEntries
from titanrun.recipe.migrate.source_tool import SourceTool
from titanrun.recipe.migrate.target_paths import (
    build_recipe_data,
    get_data_path,
    is_required_target,
)
from titanrun.recipe.resolving.hub_models import replace_hub_names
from titanrun.recipe.resolving.read_recipe import ReadResult
from titanrun.recipe.resolving.resolve import (
    ResolveOptions,
    add_missing_models,
    find_problems_in_readable_part,
    find_problems_in_sound_part,
    resolve_tree,
)

RULES_OF_OTHER_SECTIONS = ("holdout-has-documents",)
"""Rules that a mixture may break although it is right itself: their help says what to change."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Text of the migrated recipe, outcome of every key, and problems of that recipe."""

    tool: SourceTool
    text: str
    items: tuple[MigrationItem, ...]
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        """0 if no key is refused and the recipe validates, else 1."""
        refused = any(item.outcome == "refused" for item in self.items)
        return 1 if refused or any(problem.severity == "error" for problem in self.problems) else 0


def migrate_file(
    file: str, tool: SourceTool, *, recipe_name: str, header_lines: Sequence[str]
) -> Migration:
    """Migrate `file`. Raise ProblemsFound if it cannot be read.

    Args:
        file: Configuration of `tool`.
        tool: Program that the configuration was written for.
        recipe_name: Name of the new recipe in problems.
        header_lines: First lines of the new recipe.
    """
    builtins.register_builtins()
    return migrate_entries(
        tool.read(file), tool, recipe_name=recipe_name, header_lines=header_lines
    )


def migrate_entries(
    written: SourceEntries, tool: SourceTool, *, recipe_name: str, header_lines: Sequence[str]
) -> Migration:
    """Migrate entries from any source. Several datasets become a mixture if they can."""

    def settle(items: list[MigrationItem]) -> Migration:
        return settle_items(items, written, tool, recipe_name, header_lines)

    alone = [settle(plan_migration(one, tool)) for one in tool.split_datasets(written)]
    migrated = [one.items for one in alone]
    items = mix_datasets(written, migrated, tool.sample_limit) if alone else []
    mixed = settle(items) if items else None
    if mixed is not None and not has_new_errors(mixed, alone):
        return mixed
    return settle(tell_left_datasets(written, plan_migration(written, tool), migrated))


def has_new_errors(mixed: Migration, alone: Sequence[Migration]) -> bool:
    """Return whether a recipe with a mixture has errors that none of its sources has alone."""
    known = {(problem.code, problem.rule) for one in alone for problem in one.problems}
    return any(
        problem.severity == "error"
        and (problem.code, problem.rule) not in known
        and problem.rule not in RULES_OF_OTHER_SECTIONS
        for problem in mixed.problems
    )


def settle_items(
    items: list[MigrationItem],
    written: SourceEntries,
    tool: SourceTool,
    recipe_name: str,
    header_lines: Sequence[str],
) -> Migration:
    """Return the migration once validation refuses no further key and finds none without effect."""
    while True:
        text = format_migrated_recipe(items, written, tool, header_lines=header_lines)
        problems = find_recipe_problems(text, recipe_name)
        settled = [
            after for item in items if (after := update_outcome(item, items, problems)) is not None
        ]
        if settled == items:
            remaining = drop_kept_problems(items, problems)
            return Migration(tool, text, tuple(items), tuple(remaining))
        items = settled


def drop_kept_problems(items: list[MigrationItem], problems: list[Problem]) -> list[Problem]:
    """Return the problems but those of refused keys that stay because a recipe needs them."""
    data = build_recipe_data(iter_placements(items))
    kept = {
        get_data_path(data, target)
        for item in items
        if item.outcome == "refused"
        for target in item.targets
    }
    return [
        problem
        for problem in problems
        if problem.path not in kept and (*problem.path, "name") not in kept
    ]


def find_recipe_problems(text: str, name: str) -> list[Problem]:
    """Return what `titanrun validate` finds in a recipe."""
    try:
        tree = read_source_text(SourceText(name, text), "yaml")
    except ProblemsFound as found:
        return list(found.problems)
    case = ResolveOptions(name)
    # a model that was not fetched yet is no mistake
    tree, missing = replace_hub_names(tree, {})
    if missing:
        reading = add_missing_models(ReadResult(name, tree, (), set()), missing)
        notes = [replace(problem, severity="warning") for problem in missing]
        return [*notes, *find_problems_in_readable_part(reading, case)]
    try:
        return resolve_tree(tree, tree, case)[2]
    except ProblemsFound as error:
        return [*error.problems, *find_problems_in_sound_part(tree, error.problems, set(), case)]


def update_outcome(
    item: MigrationItem, items: list[MigrationItem], problems: list[Problem]
) -> MigrationItem | None:
    """Return the item after validation: refused if not built, left out if without effect."""
    if item.outcome == "unread":
        return item
    data = build_recipe_data(iter_placements(items))
    paths = {target: get_data_path(data, target) for target in item.targets}
    for problem in problems:
        about = [target for target, path in paths.items() if path == problem.path]
        if not about or (is_required_target(about[0]) and problem.code != "no-effect"):
            continue
        kept = {target: value for target, value in item.targets.items() if target not in about}
        if problem.code == "not-built":
            return replace(item, outcome="refused", targets=kept, words=problem.message)
        if problem.code == "no-effect" and kept:
            return replace(item, targets=kept)
        if problem.code == "no-effect" and item.entry is None:
            return None
        if problem.code == "no-effect":
            return replace(item, outcome="unread", words=f"left out: {problem.message}")
    return item
