"""Selection of the checkpoint to resume from: the newest valid or the requested one."""

import logging
from dataclasses import dataclass, field

from titanrun.components.checkpoints.checkpoint_store import (
    CheckpointStore,
    no_usable_checkpoint_error,
)
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.config.problems import Problem, ProblemsFound, problem_error

log = logging.getLogger(__name__)

SEED_STEP = 0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Step to resume from, and newer steps that were skipped because they are damaged."""

    step: int
    damaged_steps: list[int] = field(default_factory=list)


def find_latest_valid(
    config: CheckpointConfig, store: CheckpointStore, *, last_step: int
) -> ResumePoint | None:
    """Return the newest valid checkpoint, or None if nothing is saved.

    If steps are left to do, a checkpoint with weights only does not count as valid.

    Raises:
        ProblemsFound: checkpoints exist but all are unusable, with the reason for each.
    """
    damaged: dict[int, list[str]] = {}
    weights_only: list[int] = []
    named = store.list_all_steps()
    for step in reversed(named):
        reasons = store.find_damage(step, config.verify)
        if reasons:
            damaged[step] = reasons
            log.warning(
                "%s cannot be used: %s", store.get_checkpoint(step).folder, "; ".join(reasons)
            )
        elif SEED_STEP < step < last_step and store.load_manifest(step).holds == "model":
            weights_only.append(step)
            log.warning(
                "checkpoint step %d has weights only and cannot be resumed: "
                "trying the previous one",
                step,
            )
        else:
            return ResumePoint(step, list(damaged))
    if not named:
        return None
    raise ProblemsFound(
        [
            *no_usable_checkpoint_error(store.folder, damaged).problems,
            *(weights_only_problem(store, step) for step in weights_only),
        ]
    )


def get_requested_step(config: CheckpointConfig, store: CheckpointStore, step: int) -> ResumePoint:
    """Return the checkpoint of exactly this step.

    Raises:
        ProblemsFound: the checkpoint does not exist, is damaged, or has weights only.
    """
    path = ("checkpoint", "load_step")
    named = store.list_all_steps()
    if step not in named:
        known = f"existing steps: {', '.join(map(str, named))}" if named else "no checkpoints exist"
        raise problem_error(
            "checkpoint",
            f"no checkpoint of step {step} in {store.folder}",
            path=path,
            hint=known,
        )
    reasons = store.find_damage(step, config.verify)
    if reasons:
        raise problem_error(
            "checkpoint",
            f"{store.get_checkpoint(step).folder} cannot be used: {'; '.join(reasons)}",
            path=path,
        )
    if step != SEED_STEP and store.load_manifest(step).holds == "model":
        raise ProblemsFound([weights_only_problem(store, step)])
    return ResumePoint(step)


def weights_only_problem(store: CheckpointStore, step: int) -> Problem:
    """Build the problem of a checkpoint that has no optimizer state."""
    return Problem(
        "checkpoint",
        f"{store.get_checkpoint(step).folder} has weights only and cannot be resumed",
        ("checkpoint", "last_save_model_only"),
        hint="start a new run with checkpoint.initial_load_path",
    )
