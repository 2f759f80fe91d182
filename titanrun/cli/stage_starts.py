"""Checks of where the stages of a recipe started: each from the end of another one."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.problems import Problem, ProblemsFound, problem_error
from titanrun.config.tree import format_path
from titanrun.recipe.resolving.stage_sequence import RecipeStage
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.recipe.rundir.run_directory import (
    FEWER_STEPS,
    RunDirectory,
    select_run_directory,
)
from titanrun.recipe.rundir.run_files import RUN_JSON, read_json_or_empty


def select_stage_directory(stage: RecipeStage, now: datetime) -> RunDirectory:
    """Return the run directory of a stage, as select_run_directory does.

    Raises:
        ProblemsFound: The folder holds another run; a length is that of this stage.
    """
    try:
        return select_run_directory(stage.resolved, now)
    except ProblemsFound as found:
        raise ProblemsFound(
            [locate_stage_length(problem, stage) for problem in found.problems]
        ) from None


def locate_stage_length(problem: Problem, stage: RecipeStage) -> Problem:
    """Return a problem with too few steps at the setting of the stage, not at its folder."""
    if problem.rule != FEWER_STEPS or not problem.related:
        return problem
    length = problem.related[0]
    # `request 4 or more, or name another folder`
    needed = str(problem.hint).partition(",")[0]
    setting = f"stages.{stage.id}.{format_path(length.path)}"
    hint = f"{needed} for this stage alone, {setting}, or name another dump_folder"
    return replace(problem, path=length.path, origin=length.origin, related=(), hint=hint)


def check_stage_starts(stages: Sequence[RecipeStage], folder: Path) -> None:
    """Check the start of all stages as in check_stage_start."""
    for stage in stages:
        check_stage_start(stages, stage, folder)


def check_started_stages_keep_their_start(
    stages: Sequence[RecipeStage], directories: Sequence[RunDirectory]
) -> None:
    """Raise a problem if a stage would train on, and another has already started from its end."""
    for stage, directory in zip(stages, directories, strict=True):
        began = read_parent_step(directory.path)
        if stage.parent_index is None or began is None:
            continue
        before, source = stages[stage.parent_index].id, directories[stage.parent_index]
        if source.state == "unfinished":
            raise problem_error(
                "conflict",
                f"stage '{before}' would train on, but stage '{stage.id}' started from its step "
                f"{began}",
                hint=f"set the steps of '{stage.id}' alone: stages.{stage.id}.training.steps; or "
                f"move {directory.path} away to train both",
            )


def read_parent_step(run_dir: Path) -> int | None:
    """Return the step of the checkpoint that a run started from, None if it has not begun."""
    step = (read_json_or_empty(run_dir / RUN_JSON).get("parent") or {}).get("step")
    return step if isinstance(step, int) else None


def check_stage_start(stages: Sequence[RecipeStage], stage: RecipeStage, folder: Path) -> None:
    """Raise a problem if a stage started from a checkpoint that is no longer the last one.

    The previous stage has trained on since then.
    """
    if stage.parent_index is None or is_storage_path(
        stages[stage.parent_index].resolved.run.checkpoint.folder
    ):
        return
    before = stages[stage.parent_index].id
    began = read_parent_step(folder / stage.id)
    saved = [
        step
        for step, path in get_checkpoints_by_step(folder / before).items()
        if is_checkpoint(path)
    ]
    if began is not None and saved and saved[-1] != began:
        message = (
            f"stage '{stage.id}' started from step {began} of stage '{before}', "
            f"which is now at step {saved[-1]}"
        )
        raise problem_error(
            "conflict",
            message,
            hint=f"move {folder / stage.id} away to train it again, or use another dump_folder",
        )
