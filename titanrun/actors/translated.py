"""From the fields of an actor to a run: what became of each, in the words of who gave them."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from titanrun.actors.fields import FIELDS, ON_THE_PAGE, REFUSED, SECTIONS, given_fields, place_of
from titanrun.config.problems import Problem, ProblemsFound, SourceText
from titanrun.config.source import read_text
from titanrun.config.tree import path_text
from titanrun.recipe import menu
from titanrun.recipe.migrate.entries import Entry, Written
from titanrun.recipe.migrate.migration import Migration, migrated
from titanrun.recipe.migrate.places import data_of, path_in
from titanrun.recipe.migrate.plan import NOT_BUILT, Item, placements
from titanrun.recipe.migrate.source import read_torchtitan, todays
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.reading import read_back
from titanrun.recipe.resolve import Case, Resolved, examine

log = logging.getLogger(__name__)

CONFIG_FILE = "job.config_file"
# a recipe names a dataset; nothing reads it here
DATASET = Entry(
    "training.dataset", "training.dataset", "tiny", place_of("training.dataset", "tiny")
)


@dataclass(frozen=True, slots=True)
class Translation:
    """The recipe that fields make, and every field's value by path."""

    name: str
    values: dict[str, Any]
    migration: Migration

    def run(self, ranks: int | None) -> Resolved:
        """The run on that many ranks. Raises ProblemsFound, about the fields."""
        try:
            tree = read_back(read_text(SourceText(self.name, self.migration.text), "yaml"))
            recipe, run, problems = examine(tree, tree, Case(self.name, ranks=ranks))
        except ProblemsFound as found:
            raise ProblemsFound(
                [in_fields(problem, self.migration.items) for problem in found.problems]
            ) from None
        told = [in_fields(problem, self.migration.items) for problem in problems]
        if any(problem.severity == "error" for problem in told):
            raise ProblemsFound(told)
        return Resolved(recipe, run, tree, tuple(told), ranks)


def translate(name: str, sections: Mapping[str, object]) -> Translation:
    """The recipe of an actor called `name` with these sections. Raises ProblemsFound with everything that is wrong with them."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for section, fields in sections.items():
        found, wrong = given_fields(section, fields)
        # a section of torchtitan's own class holds its defaults too
        values |= {path: value for path, value in found.items() if not same(value, FIELDS[path])}
        problems += wrong
    problems += [refusal(path, value) for path, value in values.items() if path in REFUSED]
    if problems:
        raise ProblemsFound(problems)
    menu.open_menu()
    entries = entries_of(values)
    migration = migrated(
        Written((*entries.values(), DATASET), {}), TORCHTITAN, recipe=name, head=()
    )
    problems = [
        refusal(item.entry.written, item.value, item.words)
        for item in migration.items
        if item.entry and item.fate == "refused"
    ]
    problems += [
        in_fields(problem, migration.items)
        for problem in migration.problems
        if problem.severity == "error"
    ]
    if problems:
        raise ProblemsFound(problems)
    tell_unread(migration.items)
    return Translation(
        name, {entry.written: entry.value for entry in entries.values()} | values, migration
    )


def same(value: object, default: object) -> bool:
    """Whether a value is a field's default: True is not 1."""
    return value == default and isinstance(value, bool) == isinstance(default, bool)


def entries_of(values: dict[str, Any]) -> dict[str, Entry]:
    """The values as the entries of a configuration, over those of the file that they name."""
    entries: dict[str, Entry] = {}
    if values.get(CONFIG_FILE) is not None:
        for entry in read_torchtitan(str(values[CONFIG_FILE])).entries:
            if entry.written in REFUSED or entry.written.partition(".")[0] not in SECTIONS:
                log.warning(
                    "%s: %s is left out: the actor has no use for it", entry.origin, entry.written
                )
            else:
                entries[entry.path] = entry
    for path, default in ON_THE_PAGE.items():
        if default is not None and default is not False:
            entries.setdefault(
                todays(path), Entry(todays(path), path, default, place_of(path, default))
            )
    for path, value in values.items():
        entries[todays(path)] = Entry(todays(path), path, value, place_of(path, value))
    return entries


def refusal(path: str, value: object, words: str = "") -> Problem:
    """The problem of a field that has no place here, and why."""
    if words.endswith(NOT_BUILT):
        # torchtitan's table has no list of words, so every unknown one seems to be missing here
        return Problem(
            "unknown-name",
            f"{path} is {value!r}, which titanrun does not have",
            tuple(path.split(".")),
            place_of(path, value),
        )
    return Problem(
        "not-built",
        f"{path} is refused: {words or REFUSED[path]}",
        tuple(path.split(".")),
        place_of(path, value),
    )


def tell_unread(items: tuple[Item, ...]) -> None:
    """Says which fields nothing reads as things are."""
    for item in items:
        if (
            item.entry is not None
            and item.fate == "unread"
            and item.entry.written != CONFIG_FILE
            and item.value != FIELDS[item.entry.written]
        ):
            log.warning("%s: %s", item.entry.written, item.words)


def in_fields(problem: Problem, items: tuple[Item, ...]) -> Problem:
    """A problem of the recipe as one of the fields that made it."""
    data = data_of(placements(items))
    places = [(path_in(data, target), item) for item in items for target in item.targets]
    words = {}
    for path, item in places:
        name = item.path if item.entry is None else item.entry.written
        if path_text(path) != name:
            words[path_text(path)] = name
        if path in (problem.path, (*problem.path, "name")) and item.entry is not None:
            problem = replace(
                problem, path=tuple(name.split(".")), origin=item.entry.origin, fix=None
            )
    if problem.origin is not None and problem.origin.source.kind == "file":
        problem = replace(problem, origin=None, fix=None)
    related = tuple(replace(one, origin=None) for one in problem.related)
    help = None if problem.help is None else spoken(problem.help, words)
    return replace(problem, message=spoken(problem.message, words), help=help, related=related)


def spoken(text: str, words: Mapping[str, str]) -> str:
    """The text with the caller's names for paths of the recipe, longest first."""
    if not words:
        return text
    known = "|".join(re.escape(path) for path in sorted(words, key=len, reverse=True))
    return re.sub(rf"(?<![\w.])(?:{known})(?![\w.]*\w)", lambda match: words[match[0]], text)
