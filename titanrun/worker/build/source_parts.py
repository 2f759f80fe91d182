"""Parts that a builder of a step source passes to the builder of the training loop."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.components.validation.validator import ValidatorGroup
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.recipe.recipe import Recipe
from titanrun.rl.rollout_recorder import RolloutRecorder
from titanrun.rl.rollout_runner import RolloutRunner
from titanrun.rl.rollout_validation import RolloutValidator
from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.engine import Engine
from titanrun.training.train_hook import StepSource
from titanrun.training.train_state import TrainState
from titanrun.worker.worker_job import WorkerJob


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """Parts of an RL run from which hooks are built."""

    runner: RolloutRunner
    recorder: RolloutRecorder
    validator: RolloutValidator | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParts:
    """Step source with the engine and checkpoints it was built with.

    Their state is resumed from a checkpoint if there is one.

    Args:
        recipe: recipe with its length in steps.
        collator: collator whose encoders generate sample images.
        add_reference: adds the outputs of a reference model to a batch. None if the loss does not
            use a reference.
        validator: validation datasets of pretraining.
        rollouts: parts of an RL run. None for other kinds.
    """

    recipe: Recipe
    source: StepSource
    engine: Engine
    state: TrainState
    checkpoints: CheckpointManager
    dataloader: DistributedDataLoader
    tokenizer: Tokenizer | None
    collator: Any = None
    add_reference: Callable[[Any], Any] | None = None
    validator: ValidatorGroup | None = None
    rollouts: RolloutParts | None = None


class SourceBuilder(Protocol):
    """Function that builds the step source of a run."""

    def __call__(
        self,
        recipe: Recipe,
        job: WorkerJob,
        device: torch.device,
        meshes: ParallelMeshes | None,
        exit_stack: ExitStack,
    ) -> SourceParts:
        """Build the source. `exit_stack` closes its resources at the end of the run."""
        ...
