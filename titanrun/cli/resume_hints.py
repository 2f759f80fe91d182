"""Help with the problems of a resumed run: changes, or another folder than that of its start."""

from dataclasses import replace
from pathlib import Path

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.comparing.resume_policy import suggest_allowed_changes
from titanrun.recipe.moved_paths import suggest_moved
from titanrun.recipe.rundir.run_files import (
    RUN_JSON,
    get_starts,
    get_text_value,
    read_json_or_empty,
)

ANOTHER_RUN = "another-run"


def add_resume_hints(found: ProblemsFound, recipe: str) -> ProblemsFound:
    """Return the problems with help for a run that is resumed.

    Those about missing files of a resolved recipe say where they were: in the folder in which the
    run was started last, if its run.json is beside the recipe.
    """
    starts = get_starts(read_json_or_empty(Path(recipe).parent / RUN_JSON))
    folder = get_text_value(starts[-1], "cwd") if starts else None
    return ProblemsFound(
        [
            add_folder_hint(problem, folder)
            if is_missing_path(problem, recipe)
            else drop_folder_place(problem)
            if problem.rule == ANOTHER_RUN
            else problem
            for problem in found.problems
        ]
    )


def drop_folder_place(problem: Problem) -> Problem:
    """Return the problem of changes that a resume refuses, without the folder as their place.

    Nobody wrote the override that names it.
    """
    paths = [related.path for related in problem.related]
    hint = (
        f"undo the changes, {suggest_allowed_changes(paths)}, or begin a new run with titanrun fork"
    )
    return replace(problem, path=(), origin=None, hint=hint)


def is_missing_path(problem: Problem, recipe: str) -> bool:
    """Return whether a path in a resolved recipe leads nowhere from here."""
    return (
        problem.rule == "paths-exist"
        and problem.origin is not None
        and problem.origin.source.name == recipe
    )


def add_folder_hint(problem: Problem, folder: str | None) -> Problem:
    """Return a problem whose help says how to name the new place.

    For a relative path it also names the folder of the original run.
    """
    named = problem.message.partition(" not found: ")[2].strip("'")
    hints = [suggest_moved(named)]
    if folder is None and not Path(named).is_absolute():
        hints.append("or resume in the folder in which the run was started")
    elif folder is not None and not Path(named).is_absolute() and Path(folder) != Path.cwd():
        hints.append(f"or resume in {folder}, where the run was started")
    return replace(problem, hint="; ".join([*hints, *([problem.hint] if problem.hint else [])]))
