"""The checkpoint that a run started from first, which a resumed run reads again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.components.checkpoints.spec.manifest import is_checkpoint, try_read_manifest
from titanrun.components.checkpoints.spec.storage_path import AnyPath, parse_storage_path
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.rundir.checkpoint_lookup import (
    get_checkpoints_by_step,
    needs_initial_weights,
    to_absolute_path,
)
from titanrun.recipe.rundir.run_files import RUN_JSON, read_json_or_empty

INITIAL_LOAD = ("checkpoint", "initial_load_path")


def pin_initial_checkpoint(run: Recipe, run_dir: Path) -> Recipe:
    """Return a recipe that starts from the checkpoint that run.json has recorded.

    initial_load_path may name a run, which stands for its newest checkpoint. That run may have
    trained on since the first start, but a reference and frozen weights stay those of that start.

    Raises:
        ProblemsFound: The run reads that checkpoint again, and it is no longer there.
    """
    section = run.checkpoint
    parent = read_json_or_empty(run_dir / RUN_JSON).get("parent")
    if not isinstance(parent, Mapping) or section.initial_load_path is None:
        return run
    named = parse_storage_path(section.initial_load_path)
    if section.initial_load_in_hf or is_checkpoint(named):
        return run
    found = find_recorded_checkpoint(named, parent)
    if found is not None:
        return replace_initial_load(run, str(found))
    was_there = str(parent.get("checkpoint")).startswith(f"{to_absolute_path(named)}/")
    if was_there and needs_initial_weights(run, run_dir):
        raise missing_start_error(parent, named)
    return run


def find_recorded_checkpoint(named: AnyPath, parent: Mapping[str, Any]) -> AnyPath | None:
    """Return the checkpoint of the recorded step and recipe in a run, None if it has none."""
    found = get_checkpoints_by_step(named).get(parent.get("step", -1))
    manifest = None if found is None else try_read_manifest(found)[0]
    return found if manifest is not None and manifest.recipe == parent.get("recipe") else None


def replace_initial_load(run: Recipe, path: str) -> Recipe:
    """Return the recipe with another initial_load_path."""
    section = type(run.checkpoint).model_validate(
        {**dict(run.checkpoint), "initial_load_path": path}
    )
    # not through plain data, which fails validation if the worker has filled in a secret
    return type(run).model_validate({**dict(run), "checkpoint": section})


def missing_start_error(parent: Mapping[str, Any], named: AnyPath) -> ProblemsFound:
    """Build the problem of a checkpoint that is read again, and was deleted or replaced."""
    return problem_error(
        "checkpoint",
        f"this run started from '{parent.get('checkpoint')}', which is no longer there, and reads "
        "its weights again",
        path=INITIAL_LOAD,
        hint=f"put that checkpoint back, or begin a new run from '{named}' as it is now, with "
        "another dump_folder",
    )
