"""Policy trainer for external RL loops: gradients from batches, updates, weight export.

All ranks must call its methods together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.rl.algorithms.policy_losses import average_over_tokens
from titanrun.rl.weight_sync.transport import WeightTransport
from titanrun.rl.weight_sync.weight_sync import publish_weights
from titanrun.training.engine import Engine
from titanrun.training.runners.forward_backward import Loss

RankBatches = TokenBatch | Sequence[TokenBatch]


@dataclass(slots=True, kw_only=True)
class PolicyTrainer:
    """Trainer with the interface of torchtitan's RL trainer.

    The methods are `forward_backward`, `optim_step`, `push_weights`, `save_checkpoint`,
    `get_policy_version` and `close`. Gradients of several `forward_backward` calls accumulate until
    `optim_step`.

    Args:
        engine: this rank's engine.
        loss: a sum over tokens, such as those in titanrun.rl.algorithms.policy_losses.
        transport: where weights are published.
        dtype: dtype of published parameters. Buffers keep theirs.
        parameter_names: names of the tensors to cast.
        dp_rank: data-parallel rank.
        save: writes a checkpoint with a step number.
        load: loads a checkpoint, the latest for None, and returns its step.
        on_close: releases resources opened for the trainer.
    """

    engine: Engine
    loss: Loss
    transport: WeightTransport
    dtype: torch.dtype
    parameter_names: frozenset[str]
    dp_rank: int = 0
    save: Callable[[int], object] | None = None
    load: Callable[[int | None], int] | None = None
    on_close: Callable[[], None] = lambda: None

    def forward_backward(
        self, train_data: Sequence[RankBatches], *, num_global_valid_tokens: int
    ) -> dict[str, float]:
        """Add the gradients of the loss sum, divided by `num_global_valid_tokens`.

        Return the loss and its recorded metrics over all ranks.

        Args:
            train_data: one batch, or several, for each data-parallel rank. This rank uses its own.
            num_global_valid_tokens: valid tokens of all ranks and of all calls until the next
                `optim_step`.
        """
        own = train_data[self.dp_rank]
        batches = [own] if isinstance(own, TokenBatch) else list(own)
        recorder = StepMetrics(self.engine.device)
        normalizer = torch.tensor(num_global_valid_tokens, device=self.engine.device)
        with recorder.open():
            output = self.engine.forward_backward(batches, loss=self.loss, normalizer=normalizer)
        recorded = self.engine.merge_across_stages(recorder.flush(self.engine.loss_group))
        loss = float(output.loss_sum) / max(1, num_global_valid_tokens)
        return {"loss": loss, **average_over_tokens(recorded, num_tokens=num_global_valid_tokens)}

    def optim_step(self, *, lr: float | None = None) -> dict[str, float]:
        """Clip gradients, update weights and zero gradients.

        The update is skipped if the gradient norm is not finite.

        Args:
            lr: learning rate of this step only.
        """
        update = self.engine.optim_step(lr=lr, should_update=lambda norm: bool(norm.isfinite()))
        values = {
            "grad_norm": float(update.grad_norm),
            "lr": update.lr,
            "is_skipped": float(update.is_skipped),
        }
        return {**values, "policy_version": float(self.engine.policy_version)}

    def push_weights(self) -> int:
        """Publish the weights under the policy version and return the version.

        A version that is already published is kept.
        """
        return publish_weights(
            self.engine, self.transport, dtype=self.dtype, parameter_names=self.parameter_names
        )

    def save_checkpoint(self, step: int | None = None) -> bool:
        """Save the full state as `step`, or as the policy version.

        The state holds weights, optimizer, schedule, version and random states, but no accumulated
        gradients. Return False if no checkpoint folder is set.
        """
        if self.save is None:
            return False
        self.save(self.engine.policy_version if step is None else step)
        return True

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
