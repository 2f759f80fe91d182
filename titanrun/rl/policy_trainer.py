"""Policy trainer for external RL loops: gradients from batches, updates, weight export.

All ranks must call its methods together.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.rl.algorithms.policy_losses import average_over_tokens
from titanrun.rl.flat_microbatch import FlatMicrobatch, to_token_batch
from titanrun.rl.policy_metrics import OptimStep, build_policy_metrics
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.rl.weight_sync.weight_sync import publish_weights
from titanrun.training.engine import Engine
from titanrun.training.preference_inputs import PrepareBatchesFn
from titanrun.training.runners.forward_backward import Loss

log = logging.getLogger(__name__)

AnyBatch = TokenBatch | FlatMicrobatch
RankBatches = AnyBatch | Sequence[AnyBatch]


@dataclass(slots=True, kw_only=True)
class PolicyTrainer:
    """Trainer with the methods of torchtitan's RL trainers, called by position as there.

    Gradients of several `forward_backward` calls accumulate until `optim_step`.

    Args:
        engine: this rank's engine.
        loss: a sum over tokens, such as those in titanrun.rl.algorithms.policy_losses.
        transport: where weights are published.
        dtype: dtype of published parameters. Buffers keep theirs.
        parameter_names: names of the tensors to cast.
        dp_rank: data-parallel rank.
        prepare: changes the batches of a call before its gradients, such as `DropTokens`.
        save: writes a checkpoint with a step number, of the weights alone if it is the last.
        export: writes the weights alone into a folder.
        load: loads a checkpoint, the latest for None, and returns its step.
        on_close: releases resources opened for the trainer.
    """

    engine: Engine
    loss: Loss
    transport: WeightTransport
    dtype: torch.dtype
    parameter_names: frozenset[str]
    dp_rank: int = 0
    prepare: PrepareBatchesFn | None = None
    save: Callable[[int, bool], object] | None = None
    export: Callable[[Path], object] | None = None
    load: Callable[[int | None], int] | None = None
    on_close: Callable[[], None] = lambda: None
    log_step: int | None = None
    _has_own_mean: bool = False

    def forward_backward(
        self,
        training_data: Sequence[RankBatches] | None = None,
        num_global_valid_tokens: int | None = None,
        *,
        train_data: Sequence[RankBatches] | None = None,
    ) -> dict[str, float]:
        """Add the gradients of the loss sum, divided by `num_global_valid_tokens`.

        Return the loss and its recorded metrics over all ranks, under our names and torchtitan's.

        Args:
            training_data: one batch, or several, for each data-parallel rank. This rank uses its
                own. A flat microbatch of torchtitan is one sequence.
            num_global_valid_tokens: valid tokens of all ranks and of all calls until the next
                `optim_step`. None: those of this call, which is then the only one.
            train_data: name of `training_data` in torchtitan's first trainer.

        Raises:
            TypeError: no data, or data under both names.
            ValueError: a second call without the number of tokens.
        """
        given = train_data if training_data is None else training_data
        if given is None or (training_data is not None and train_data is not None):
            raise TypeError("give forward_backward its batches as training_data or as train_data")
        if self._has_own_mean:
            raise ValueError(
                "two means do not add up: give num_global_valid_tokens to forward_backward, "
                "or call optim_step before it is called again"
            )
        self._has_own_mean = num_global_valid_tokens is None
        batches = self._prepare_batches(given[self.dp_rank])
        normalizer = (
            None
            if num_global_valid_tokens is None
            else torch.tensor(num_global_valid_tokens, device=self.engine.device)
        )
        recorder = StepMetrics(self.engine.device)
        with recorder.open():
            output = self.engine.forward_backward(batches, loss=self.loss, normalizer=normalizer)
        count = (
            # with weights, their sum
            round(float(output.valid_tokens))
            if num_global_valid_tokens is None
            else num_global_valid_tokens
        )
        recorded = self.engine.merge_across_stages(recorder.flush(self.engine.loss_group))
        return build_policy_metrics(
            float(output.loss_sum) / max(1, count), average_over_tokens(recorded, num_tokens=count)
        )

    def _prepare_batches(self, given: RankBatches) -> Sequence[TokenBatch]:
        """Return the batches of this rank as the engine takes them."""
        batches = [
            each if isinstance(each, TokenBatch) else to_token_batch(each)
            for each in (given if isinstance(given, Sequence) else [given])
        ]
        return batches if self.prepare is None else self.prepare(batches)

    def optim_step(self, lr: float | None = None) -> OptimStep:
        """Clip gradients, update weights and zero gradients.

        The update is skipped if the gradient norm is not finite.

        Args:
            lr: learning rate of this step only.
        """
        self._has_own_mean = False
        update = self.engine.optim_step(lr=lr, should_update=lambda norm: bool(norm.isfinite()))
        if update.is_skipped:
            at = "" if self.log_step is None else f" of step {self.log_step}"
            log.warning("gradient norm%s is %s: update skipped", at, float(update.grad_norm))
        version = self.engine.policy_version
        values = {
            "grad_norm": float(update.grad_norm),
            "lr": update.lr,
            "is_skipped": float(update.is_skipped),
            "policy_version": float(version),
        }
        rates = (float(group["lr"]) for group in self.engine.optimizer.param_groups)
        return OptimStep(version, values, tuple(sorted(set(rates))))

    def push_weights(self) -> int:
        """Publish the weights under the policy version and return the version.

        A version that is already published is kept.
        """
        return publish_weights(
            self.engine, self.transport, dtype=self.dtype, parameter_names=self.parameter_names
        )

    def push_model_state_dict(self) -> None:
        """Publish the weights, as `push_weights`."""
        self.push_weights()

    def sync_log_step(self, step: int, relative_step: int | None = None) -> None:
        """Set the step that log messages name.

        Args:
            step: step of the loop.
            relative_step: step since the start of this process. Not used.
        """
        self.log_step = step

    def save_checkpoint(
        self, step: int | str | Path | None = None, last_step: bool = False
    ) -> bool:
        """Save the full state as a step, or the weights alone into a folder.

        The state holds weights, optimizer, schedule, version and random states, but no accumulated
        gradients. Return False if no checkpoint folder is set.

        Args:
            step: number of the step, None for the policy version. A path is a folder for the
                weights.
            last_step: whether checkpoint.last_save_model_only applies.
        """
        if isinstance(step, str | Path):
            if self.export is not None:
                self.export(Path(step))
            return self.export is not None
        if self.save is None:
            return False
        self.save(self.engine.policy_version if step is None else step, last_step)
        return True

    def state_dict(self) -> dict[str, int]:
        """Return what a loop keeps of the trainer beside its checkpoints."""
        return {"policy_version": self.engine.policy_version}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Restore what `state_dict` returned."""
        self.engine.policy_version = state_dict["policy_version"]

    def load_checkpoint(self, step: int | None = None) -> int:
        """Load a checkpoint, the latest if `step` is None, and return its step.

        Raises:
            ValueError: no checkpoint folder is set.
        """
        if self.load is None:
            raise ValueError("no checkpoint folder is set")
        return self.load(step)

    def get_policy_version(self) -> int:
        """Return the number of updates made."""
        return self.engine.policy_version

    def close(self) -> None:
        """Release all resources. Further calls have no effect."""
        self.transport.close()
        self.on_close()
        self.on_close = lambda: None
