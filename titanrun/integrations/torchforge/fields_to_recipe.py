"""Translation of an actor's fields to a recipe, with problems in terms of the fields."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from titanrun.config.problems import Problem, ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.tree import format_path
from titanrun.integrations.torchforge.actor_fields import (
    ACTOR_SECTIONS,
    DOCUMENTED_DEFAULTS,
    FIELD_DEFAULTS,
    UNSUPPORTED_FIELDS,
    build_override_origin,
    parse_section,
)
from titanrun.recipe import builtins
from titanrun.recipe.migrate.migration import Migration, migrate_entries
from titanrun.recipe.migrate.migration_plan import NOT_BUILT, MigrationItem, iter_placements
from titanrun.recipe.migrate.source_entries import SourceEntries, SourceEntry
from titanrun.recipe.migrate.target_paths import build_recipe_data, get_data_path
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.migrate.torchtitan_reader import read_torchtitan, update_old_path
from titanrun.recipe.resolving.read_recipe import read_resolved_tree
from titanrun.recipe.resolving.resolve import Resolved, ResolveOptions, resolve_tree

log = logging.getLogger(__name__)

CONFIG_FILE = "job.config_file"
# a recipe needs a dataset, which is never read here
PLACEHOLDER_DATASET = SourceEntry(
    "training.dataset",
    "training.dataset",
    "tiny",
    build_override_origin("training.dataset", "tiny"),
)


@dataclass(frozen=True, slots=True)
class FieldTranslation:
    """Recipe built from fields, and the value of every field by path."""

    name: str
    values: dict[str, Any]
    migration: Migration

    def resolve(self, ranks: int | None) -> Resolved:
        """Resolve the recipe for a number of ranks.

        Raises:
            ProblemsFound: problems with the fields.
        """
        try:
            tree = read_resolved_tree(
                read_source_text(SourceText(self.name, self.migration.text), "yaml")
            )
            recipe, run, problems = resolve_tree(tree, tree, ResolveOptions(self.name, ranks=ranks))
        except ProblemsFound as found:
            raise ProblemsFound(
                [to_field_problem(problem, self.migration.items) for problem in found.problems]
            ) from None
        field_problems = [to_field_problem(problem, self.migration.items) for problem in problems]
        if any(problem.severity == "error" for problem in field_problems):
            raise ProblemsFound(field_problems)
        return Resolved(recipe, run, tree, tuple(field_problems), ranks)


def translate_fields(name: str, sections: Mapping[str, object]) -> FieldTranslation:
    """Translate the sections of an actor called `name` to a recipe.

    Raises:
        ProblemsFound: all problems with the fields.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for section, fields in sections.items():
        found, wrong = parse_section(section, fields)
        # an object of torchtitan's class contains defaults too
        values |= {
            path: value
            for path, value in found.items()
            if not is_field_default(value, FIELD_DEFAULTS[path])
        }
        problems += wrong
    problems += [
        build_unsupported_field_problem(path, value)
        for path, value in values.items()
        if path in UNSUPPORTED_FIELDS
    ]
    if problems:
        raise ProblemsFound(problems)
    builtins.register_builtins()
    entries = build_source_entries(values)
    migration = migrate_entries(
        SourceEntries((*entries.values(), PLACEHOLDER_DATASET), {}),
        TORCHTITAN,
        recipe_name=name,
        header_lines=(),
    )
    problems = [
        build_unsupported_field_problem(item.entry.written_path, item.value, item.words)
        for item in migration.items
        if item.entry and item.outcome == "refused"
    ]
    problems += [
        to_field_problem(problem, migration.items)
        for problem in migration.problems
        if problem.severity == "error"
    ]
    if problems:
        raise ProblemsFound(problems)
    log_unread_fields(migration.items)
    return FieldTranslation(
        name, {entry.written_path: entry.value for entry in entries.values()} | values, migration
    )


def is_field_default(value: object, default: object) -> bool:
    """Return whether a value equals the default. True and 1 are different."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def build_source_entries(values: dict[str, Any]) -> dict[str, SourceEntry]:
    """Return the values as configuration entries, merged over those of `job.config_file`."""
    entries: dict[str, SourceEntry] = {}
    if values.get(CONFIG_FILE) is not None:
        for entry in read_torchtitan(str(values[CONFIG_FILE])).entries:
            if (
                entry.written_path in UNSUPPORTED_FIELDS
                or entry.written_path.partition(".")[0] not in ACTOR_SECTIONS
            ):
                log.warning(
                    "%s: %s is ignored: the actor does not use it",
                    entry.origin,
                    entry.written_path,
                )
            else:
                entries[entry.path] = entry
    for path, default in DOCUMENTED_DEFAULTS.items():
        if default is not None and default is not False:
            entries.setdefault(
                update_old_path(path),
                SourceEntry(
                    update_old_path(path), path, default, build_override_origin(path, default)
                ),
            )
    for path, value in values.items():
        entries[update_old_path(path)] = SourceEntry(
            update_old_path(path), path, value, build_override_origin(path, value)
        )
    return entries


def build_unsupported_field_problem(path: str, value: object, words: str = "") -> Problem:
    """Build the problem of an unsupported field, with the reason."""
    if words.endswith(NOT_BUILT):
        # torchtitan's table has no list of valid names, so every unknown name looks unsupported
        return Problem(
            "unknown-name",
            f"{path} is {value!r}, which titanrun does not support",
            tuple(path.split(".")),
            build_override_origin(path, value),
        )
    return Problem(
        "not-built",
        f"{path} is not supported: {words or UNSUPPORTED_FIELDS[path]}",
        tuple(path.split(".")),
        build_override_origin(path, value),
    )


def log_unread_fields(items: tuple[MigrationItem, ...]) -> None:
    """Log fields without an effect in this configuration."""
    for item in items:
        if (
            item.entry is not None
            and item.outcome == "unread"
            and item.entry.written_path != CONFIG_FILE
            and item.value != FIELD_DEFAULTS[item.entry.written_path]
        ):
            log.warning("%s: %s", item.entry.written_path, item.words)


def to_field_problem(problem: Problem, items: tuple[MigrationItem, ...]) -> Problem:
    """Convert a problem of the recipe to a problem of the fields that define it."""
    data = build_recipe_data(iter_placements(items))
    path_items = [(get_data_path(data, target), item) for item in items for target in item.targets]
    words = {}
    for path, item in path_items:
        name = item.path if item.entry is None else item.entry.written_path
        if format_path(path) != name:
            words[format_path(path)] = name
        if path in (problem.path, (*problem.path, "name")) and item.entry is not None:
            problem = replace(
                problem, path=tuple(name.split(".")), origin=item.entry.origin, fix=None
            )
    if problem.origin is not None and problem.origin.source.kind == "file":
        problem = replace(problem, origin=None, fix=None)
    related = tuple(replace(one, origin=None) for one in problem.related)
    hint = None if problem.hint is None else replace_recipe_paths(problem.hint, words)
    return replace(
        problem, message=replace_recipe_paths(problem.message, words), hint=hint, related=related
    )


def replace_recipe_paths(text: str, words: Mapping[str, str]) -> str:
    """Replace paths of the recipe in a text by the caller's names, longest first."""
    if not words:
        return text
    known = "|".join(re.escape(path) for path in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{known})(?![\w.]*\w)", lambda match: words[match[0]], text)
