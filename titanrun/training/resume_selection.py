"""Selection of the checkpoint to resume from: the newest valid or the requested one."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from titanrun.components.checkpoints.checkpoint_store import (
    CheckpointStore,
    no_usable_checkpoint_error,
)
from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.problems import Problem, ProblemsFound, problem_error

log = logging.getLogger(__name__)

SEED_STEP = 0
# raises a problem for the folder of a checkpoint that another run saved
CheckOwner = Callable[[AnyPath], None]


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Step to resume from, and newer steps that were skipped because they are damaged."""

    step: int
    damaged_steps: list[int] = field(default_factory=list)


def accept_any_owner(checkpoint: AnyPath) -> None:
    """Accept a checkpoint of any run."""


def find_latest_valid(
    config: CheckpointConfig,
    store: CheckpointStore,
    *,
    last_step: int,
    check_owner: CheckOwner = accept_any_owner,
) -> ResumePoint | None:
    """Return the newest valid checkpoint, or None if nothing is saved.

    If steps are left to do, a checkpoint with weights only does not count as valid.

    Raises:
        ProblemsFound: checkpoints exist but all are unusable, with the reason for each, or the
            newest valid one is of another run or another version of titanrun.
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
            continue
        check_step_owner(store, step, check_owner)
        if SEED_STEP < step < last_step and store.load_manifest(step).holds == "model":
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


def check_step_owner(store: CheckpointStore, step: int, check_owner: CheckOwner) -> None:
    """Raise the problem of a checkpoint of another run on all ranks."""
    folder = store.get_checkpoint(step).folder
    store.ranks.broadcast_from_main(lambda: check_owner(folder))


def get_requested_step(
    config: CheckpointConfig,
    store: CheckpointStore,
    step: int,
    *,
    check_owner: CheckOwner = accept_any_owner,
) -> ResumePoint:
    """Return the checkpoint of exactly this step.

    Raises:
        ProblemsFound: the checkpoint does not exist, is damaged or of another run, or has weights
            only.
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
    check_step_owner(store, step, check_owner)
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
