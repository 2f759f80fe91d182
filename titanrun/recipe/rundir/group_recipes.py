"""Agreement of replica groups on several machines, each with a command, on one recipe."""

from dataclasses import replace
from pathlib import Path

from titanrun.config.base import dump_config
from titanrun.config.data_diff import diff_data
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.resolving.resolve import Resolved, load_resolved
from titanrun.recipe.rundir.run_directory import build_other_recipe_problem
from titanrun.recipe.rundir.run_files import RESOLVED


def get_shared_folder(resolved: Resolved) -> Path:
    """Return the run directory that the groups of all machines have in common.

    Raises:
        ProblemsFound: the recipe names none.
    """
    if resolved.recipe.dump_folder is None:
        raise problem_error(
            "usage",
            "dump_folder is not set, but the replica groups of all machines share one",
            path=("fault_tolerance", "replica_id"),
            hint="set dump_folder to a folder that every machine sees",
        )
    return Path(resolved.recipe.dump_folder)


def check_groups_agree(path: Path, resolved: Resolved) -> None:
    """Raise if this command's recipe is not that of the replica groups which train in a folder."""
    before = load_resolved(path / RESOLVED)
    changes = [
        change
        for change in diff_data(dump_config(before), dump_config(resolved.run))
        if change.path[:1] != ("launch",) and change.path != ("fault_tolerance", "replica_id")
    ]
    if changes:
        problem = build_other_recipe_problem(path, changes, resolved)
        hint = "start all groups with the same recipe and the same overrides, but for replica_id"
        raise ProblemsFound([replace(problem, hint=hint)])
