"""Parts that a builder of a step source passes to the builder of the training loop."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from titanrun.components.data.sample_loader import SampleLoader
from titanrun.components.metrics.metric_logger import MetricLogger
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.components.validation.validator import ValidatorGroup
from titanrun.distributed.parallel_meshes import ParallelMeshes
from titanrun.recipe.recipe import Recipe
from titanrun.rl.rollout_recorder import RolloutRecorder
from titanrun.rl.rollout_source import AnyRolloutRunner
from titanrun.rl.rollout_validation import RolloutValidator
from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.training.engine import Engine
from titanrun.training.loop import TrainLoop
from titanrun.training.preference_inputs import PrepareBatchesFn
from titanrun.training.train_hook import StepSource
from titanrun.training.train_state import TrainState
from titanrun.worker.worker_job import WorkerJob


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """Parts of an RL run from which hooks are built."""

    runner: AnyRolloutRunner
    recorder: RolloutRecorder
    validator: RolloutValidator | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParts:
    """Step source with the engine and checkpoints it was built with.

    Their state is resumed from a checkpoint if there is one.

    Args:
        recipe: recipe with its length in steps.
        collator: collator whose encoders generate sample images.
        prepare_batches: adds to the batches of a step what the loss reads beside tokens, such as
            the outputs of a reference model. None if it reads only tokens.
        validator: validation datasets of pretraining.
        rollouts: parts of an RL run. None for other kinds.
    """

    recipe: Recipe
    source: StepSource
    engine: Engine
    state: TrainState
    checkpoints: CheckpointManager
    dataloader: SampleLoader
    tokenizer: Tokenizer | None
    collator: Any = None
    prepare_batches: PrepareBatchesFn | None = None
    validator: ValidatorGroup | None = None
    rollouts: RolloutParts | None = None


@dataclass(frozen=True, slots=True)
class LoopParts:
    """Builder of the training loop from its further arguments, and the logger of its metrics."""

    build: Callable[..., TrainLoop]
    metrics: MetricLogger


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
