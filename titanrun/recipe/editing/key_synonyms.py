"""Hints for names of other tools: the field that does what they mean."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from titanrun.config.key_suggestions import NAME
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, Problem
from titanrun.config.suggest import edit_distance, normalize_spelling
from titanrun.config.tree import Node, format_path, to_plain_data
from titanrun.config.type_introspection import find_value
from titanrun.config.validate_tree import KNOWN_KEYS
from titanrun.recipe.editing.component_meanings import (
    format_layout_meaning,
    format_listed_adapters,
    format_name_meaning,
    format_section_meaning,
    format_value_word,
    list_native_modules,
)
from titanrun.recipe.editing.data_keys import (
    describe_named_dataset,
    find_missing_name,
    format_data_key,
)
from titanrun.recipe.editing.key_meanings import format_key_meaning, format_value_meaning
from titanrun.recipe.editing.section_words import format_section_word
from titanrun.recipe.editing.synonym_table import SYNONYMS
from titanrun.recipe.editing.word_fixes import build_hinted_fix

if TYPE_CHECKING:
    from titanrun.recipe.migrate import program_hints as program_hints
    from titanrun.recipe.migrate import torchtitan_hints as torchtitan_hints
else:
    # imported only if a recipe has unknown names
    program_hints = LazyModule("titanrun.recipe.migrate.program_hints")
    torchtitan_hints = LazyModule("titanrun.recipe.migrate.torchtitan_hints")

MAX_HINTS = 3
TRAINING = "training"
HINTED = ("missing-key", "out-of-range", "unknown-key", "unknown-name", "wrong-type")
"""Codes of problems that a name or a value of another program may cause."""

# allowed on the command line only
FLAGS = {
    "trust_remote_code": "a recipe cannot allow third-party code to run: read the code that comes "
    "with the weights, then start with --trust"
}


def add_hints(problems: tuple[Problem, ...], tree: Node) -> list[Problem]:
    """Return the problems; those about names and values of others get a hint with titanrun's."""
    if not any(problem.code in HINTED for problem in problems):
        return list(problems)
    data = list_native_modules(to_plain_data(tree))
    add_meant_sections(data, problems)
    return [add_hint(problem, data, tree) for problem in problems]


def drop_written_keys(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems without those of required keys that hints for other names write."""
    hints = [str(problem.hint) for problem in problems if problem.code == "unknown-key"]
    return [problem for problem in problems if not is_written_by_hint(problem, hints)]


def is_written_by_hint(problem: Problem, hints: Sequence[str]) -> bool:
    """Return whether a key is only missing because another name stands in its place.

    A single setting of a component does not write the component.
    """
    if problem.code != "missing-key":
        return False
    key = re.escape(format_path(problem.path))
    return any(re.match(rf"write {key}(: |\.[\w.]+: {{)", hint) for hint in hints)


def add_meant_sections(data: Any, problems: tuple[Problem, ...]) -> None:
    """Add misspelled sections by the names that they mean, by which the problems in them call them.

    `data` is changed.
    """
    for problem in problems:
        holder = find_value(data, problem.path[:-1]) if problem.code == "unknown-key" else None
        if isinstance(holder, dict) and isinstance(holder.get(problem.path[-1]), dict):
            holder.setdefault(problem.suggestion or problem.path[-1], holder[problem.path[-1]])


def add_hint(problem: Problem, data: Any, tree: Node) -> Problem:
    """Return a problem with a hint, if there is one."""
    if problem.code == "unknown-name":
        name = problem.got["name"] if isinstance(problem.got, dict) else problem.got
        hint = (
            format_name_meaning(name, problem.path, data)
            or describe_named_dataset(name, problem.path, data)
            or format_value_word(problem.path, name)
            or program_hints.describe_named_model(problem.path, name)
            or torchtitan_hints.format_component_hint(name)
        )
    elif problem.code == "unknown-key":
        hint = find_key_hint(problem, data)
    elif problem.code in ("out-of-range", "wrong-type"):
        hint = (
            format_value_meaning(problem.path, problem.got, data)
            or format_value_word(problem.path, problem.got)
            or format_listed_adapters(problem.path, data)
        )
    elif problem.code == "missing-key":
        return replace(problem, hint=find_missing_name(problem, data) or problem.hint)
    else:
        return problem
    if hint:
        # without its suggestion, a component would be told that its name is missing too
        kept = NAME if problem.suggestion == NAME else None
        fix = build_hinted_fix(problem, hint, tree)
        return replace(problem, hint=hint, suggestion=kept, fix=fix)
    return replace(problem, fix=None) if belongs_to_program(problem) else problem


def find_key_hint(problem: Problem, data: Any) -> str:
    """Return a better hint for an unknown key than its problem has, or an empty text."""
    path, value = problem.path, find_value(data, problem.path)
    holder = find_value(data, path[:-1])
    # below a misspelled section there is no value at the path that was meant
    may_be_component = (
        path[:-1] in ((), (TRAINING,)) and isinstance(holder, dict) and path[-1] in holder
    )
    if path[-1] in FLAGS:
        return FLAGS[str(path[-1])]
    if problem.suggestion is not None and torchtitan_hints.is_renamed_key(
        format_path(path), format_path((*path[:-1], problem.suggestion))
    ):
        return ""  # the suggestion says the same, and can be applied
    meant = (
        format_section_word(path, data)
        or (may_be_component and format_section_meaning(str(path[-1]), holder))
        or format_layout_meaning(path, data)
        or format_data_key(path, data)
        or format_key_meaning(path, data)
        or (isinstance(value, dict) and torchtitan_hints.format_section_hint(format_path(path)))
        or "; ".join(list_torchtitan_hints(path, value)[:MAX_HINTS])
    )
    if meant or is_replacement(problem):
        return meant
    return (
        program_hints.describe_reply_key(path, value, data)
        or program_hints.describe_program_key(path, value)
        or (program_hints.describe_program_target(path, value) if is_guess(problem) else "")
    )


def is_replacement(problem: Problem) -> bool:
    """Return whether an unknown key is certainly another spelling or name of the suggested one."""
    return problem.fix is not None and not is_typo(problem)


def is_typo(problem: Problem) -> bool:
    """Return whether an unknown key is taken for the suggested one with a wrong letter."""
    word, meant = str(problem.path[-1]), str(problem.suggestion)
    known = word.lower().replace("-", "_") in SYNONYMS
    return not known and normalize_spelling(word) != normalize_spelling(meant)


def belongs_to_program(problem: Problem) -> bool:
    """Return whether what looks like a typo, and would be corrected, is a key of a program."""
    if problem.fix is None or problem.code != "unknown-key" or not is_typo(problem):
        return False
    return program_hints.is_program_key(problem.path)


def list_torchtitan_hints(path: DataPath, value: Any) -> list[str]:
    """Return where the keys of torchtitan at or below a path belong."""
    hints = (
        torchtitan_hints.format_key_hint(format_path(leaf)) for leaf in iter_leaf_paths(value, path)
    )
    return [hint for hint in hints if hint]


def is_guess(problem: Problem) -> bool:
    """Return whether the hint for an unknown key knows only the spelling of other keys."""
    if problem.suggestion is None:
        return (problem.hint or "").startswith(KNOWN_KEYS)
    word = str(problem.path[-1]).lower().replace("-", "_")
    is_near = edit_distance(word, problem.suggestion, 1) <= 1
    return problem.suggestion not in SYNONYMS.get(word, ()) and not is_near


def iter_leaf_paths(value: Any, path: DataPath) -> Iterator[DataPath]:
    """Yield the paths of the values below a mapping."""
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            yield from iter_leaf_paths(inside, (*path, key))
    else:
        yield path
