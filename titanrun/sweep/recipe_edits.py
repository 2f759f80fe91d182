"""Edits of a recipe or a sweep file after a sweep began: results of different recipes in one table.

What does not change the results may be edited: names, logging, `launch`, and what only speed or
memory depends on.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from titanrun.config.base import dump_config
from titanrun.config.data_diff import DataChange, diff_data
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import Problem, ProblemsFound, RelatedLocation
from titanrun.config.tree import find_origin, to_plain_data
from titanrun.recipe.comparing.resume_policy import (
    find_change_policy,
    format_resume_change,
    is_path_listed,
)
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.multi_stage import split_stage
from titanrun.recipe.resolving.read_recipe import compose_recipe, find_plugin_files
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.plugin_copies import (
    build_changed_plugin_error,
    find_changed_plugin,
)
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.run_progress import has_trained
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.sweep_results import locate_run
from titanrun.sweep.validate_points import NON_IDENTITY_FIELDS, PlannedRun, Resolver

LAUNCH = "launch"
VALIDATION = "validation"
OBSERVERS = (*NON_IDENTITY_FIELDS, LAUNCH, "metrics", "profiling")
EDITED = "the recipe was edited since the {} began: no more {} start"


def compute_recipe_digest(recipe: str) -> str:
    """Compute the digest of what a recipe says, with the files that it extends and its plug-ins.

    Names, folders and where the runs train may change during a search.
    """
    tree = compose_recipe(split_stage(recipe)[0])
    written = to_plain_data(tree)
    assert isinstance(written, dict)
    left_out = (*NON_IDENTITY_FIELDS, LAUNCH)
    kept = {key: value for key, value in written.items() if key not in left_out}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for file in find_plugin_files(tree):
        digest.update(file.content)
    return digest.hexdigest()


def find_result_changes(before: Recipe, now: Recipe, metric: str) -> list[DataChange]:
    """Return the differences of two recipes whose runs cannot be compared by a metric.

    Changes that `checkpoint.allow_change` lists are accepted.
    """
    is_validated = metric.startswith(f"{VALIDATION}/")
    return [
        change
        for change in diff_data(dump_config(before), dump_config(now))
        if change.path[0] not in OBSERVERS
        and not is_path_listed(change.path, now.checkpoint.allow_change)
        and (is_numeric(change, before, now) or (is_validated and change.path[0] == VALIDATION))
    ]


def is_numeric(change: DataChange, before: Recipe, now: Recipe) -> bool:
    """Return whether a change moves the loss curve, by what its field declares."""
    policy = find_change_policy(change.path, now) or find_change_policy(change.path, before)
    return policy is None or policy[0] == "numerics"


def check_same_recipes(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    """Raise ProblemsFound if folders of these runs hold runs of other recipes.

    The name of a run tells only the values that vary: another recipe can have the same names.
    """
    changed = []
    for run in runs:
        folder = locate_run(run.folder)
        if (folder / RESOLVED).is_file() and has_trained(folder):
            before, now = load_resolved(folder / RESOLVED), run.resolved.run
            if changes := find_result_changes(before, now, sweep.config.metric):
                changed.append((run, changes))
            if file := find_changed_plugin(folder, run.resolved):
                raise build_changed_plugin_error(folder, file, run.resolved)
    if not changed:
        return
    run, changes = changed[0]
    difference = pluralize(len(changes), "value differs", "values differ")
    raise ProblemsFound(
        [
            Problem(
                "conflict",
                f"{pluralize(len(changed), 'run')} in '{sweep.folder}' trained another recipe, "
                f"such as '{run.name}': {difference}",
                hint="undo the edit, set another folder, or list what may differ in "
                "checkpoint.allow_change",
                related=tuple(
                    RelatedLocation(
                        find_origin(run.resolved.tree, change.path),
                        format_resume_change(change),
                        change.path,
                    )
                    for change in changes
                ),
            )
        ]
    )


def is_recipe_edited(
    sweep: Sweep, run: PlannedRun, resolve: Resolver, environment: Mapping[str, str]
) -> bool:
    """Return whether a run that starts now would not train what was planned."""
    try:
        now = resolve(sweep.recipe, run.overrides, environment=environment).run
    except ProblemsFound:
        return True
    return bool(find_result_changes(run.resolved.run, now, sweep.config.metric))
