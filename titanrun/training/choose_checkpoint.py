"""Which checkpoint a run goes on from: the newest that can be trusted, or the one that the recipe names."""

import logging
from dataclasses import dataclass, field

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.components.checkpoints.store import CheckpointStore, nothing_to_go_on_from
from titanrun.config.problems import Problem, ProblemsFound, fail

log = logging.getLogger(__name__)

SEED_STEP = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The step to go on from, and newer ones that were passed over because they are damaged."""

    step: int
    damaged: list[int] = field(default_factory=list)


def newest_good(config: CheckpointConfig, store: CheckpointStore, *, steps: int) -> Choice | None:
    """The newest checkpoint that can be trusted, and holds everything where steps are left to do; None where nothing is saved.

    Raises ProblemsFound, with the reason for each, where there are checkpoints and none is good.
    """
    damaged: dict[int, list[str]] = {}
    weights_only: list[int] = []
    named = store.named_steps()
    for step in reversed(named):
        reasons = store.damage(step, config.verify)
        if reasons:
            damaged[step] = reasons
            log.warning("%s cannot be used: %s", store.checkpoint(step).folder, "; ".join(reasons))
        elif SEED_STEP < step < steps and store.manifest(step).holds == "model":
            weights_only.append(step)
            log.warning("step %d was saved with its weights only: going back", step)
        else:
            return Choice(step, list(damaged))
    if not named:
        return None
    raise ProblemsFound(
        [
            *nothing_to_go_on_from(store.folder, damaged).problems,
            *(holds_weights(store, step) for step in weights_only),
        ]
    )


def asked_for(config: CheckpointConfig, store: CheckpointStore, step: int) -> Choice:
    """The checkpoint of that very step. Raises a problem where it is not there, or cannot be trusted: no other one will do."""
    path = ("checkpoint", "load_step")
    named = store.named_steps()
    if step not in named:
        known = f"there are {', '.join(map(str, named))}" if named else "there is none"
        raise fail(
            "checkpoint",
            f"there is no checkpoint of step {step} in {store.folder}",
            path=path,
            help=known,
        )
    reasons = store.damage(step, config.verify)
    if reasons:
        raise fail(
            "checkpoint",
            f"{store.checkpoint(step).folder} cannot be used: {'; '.join(reasons)}",
            path=path,
        )
    if step != SEED_STEP and store.manifest(step).holds == "model":
        raise ProblemsFound([holds_weights(store, step)])
    return Choice(step)


def holds_weights(store: CheckpointStore, step: int) -> Problem:
    """The problem of a checkpoint that has no optimizer state."""
    return Problem(
        "checkpoint",
        f"{store.checkpoint(step).folder} holds the weights only, the run cannot go on from it",
        ("checkpoint", "last_save_model_only"),
        help="start a new run with checkpoint.initial_load_path",
    )
