"""A policy trainer for RL loops that are not ours: gradients from batches, updates, weights out. One call on every rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from titanrun.components.data.batch import TokenBatch
from titanrun.components.metrics.recorder import Recorder
from titanrun.rl.algorithms.losses import per_token
from titanrun.rl.weight_sync.bus import WeightBus
from titanrun.rl.weight_sync.delivery import publish
from titanrun.training.engine import Engine
from titanrun.training.passes import Loss

Given = TokenBatch | Sequence[TokenBatch]


@dataclass(slots=True, kw_only=True)
class PolicyTrainer:
    """The trainer of torchtitan's RL: `forward_backward`, `optim_step`, `push_weights`, `save_checkpoint`, `get_policy_version`, `close`.

    Gradients of several `forward_backward` calls add up until `optim_step`.

    Args:
        engine: of this rank.
        loss: a sum over tokens, as the algorithms of titanrun.rl.algorithms.losses.
        bus: where weights are pushed.
        dtype: of the pushed parameters; buffers keep theirs.
        parameters: names of what is cast.
        rank: which data-parallel rank this is.
        save: writes a checkpoint under a step's number.
        load: takes one up, the latest for None, and gives its step.
        on_close: ends what was opened for it.
    """

    engine: Engine
    loss: Loss
    bus: WeightBus
    dtype: torch.dtype
    parameters: frozenset[str]
    rank: int = 0
    save: Callable[[int], object] | None = None
    load: Callable[[int | None], int] | None = None
    on_close: Callable[[], None] = lambda: None

    def forward_backward(
        self, train_data: Sequence[Given], *, num_global_valid_tokens: int
    ) -> dict[str, float]:
        """Adds the gradients of the loss sum divided by the tokens.

        Args:
            train_data: one batch, or several, for each data-parallel rank; this rank takes its own.
            num_global_valid_tokens: of all ranks and of all calls until the next `optim_step`.

        Returns the loss, and what it records, of all ranks.
        """
        own = train_data[self.rank]
        batches = [own] if isinstance(own, TokenBatch) else list(own)
        recorder = Recorder(self.engine.device)
        normalizer = torch.tensor(num_global_valid_tokens, device=self.engine.device)
        with recorder.open():
            output = self.engine.forward_backward(batches, loss=self.loss, normalizer=normalizer)
        recorded = self.engine.of_all_stages(recorder.flush(self.engine.loss_group))
        loss = float(output.loss_sum) / max(1, num_global_valid_tokens)
        return {"loss": loss, **per_token(recorded, tokens=num_global_valid_tokens)}

    def optim_step(self, *, lr: float | None = None) -> dict[str, float]:
        """Clips, updates, drops the gradients; an update that is no number is left out. `lr`: of this step alone."""
        update = self.engine.optim_step(lr=lr, accepts=lambda norm: bool(norm.isfinite()))
        values = {
            "grad_norm": float(update.grad_norm),
            "lr": update.lr,
            "is_skipped": float(update.is_skipped),
        }
        return {**values, "policy_version": float(self.engine.policy_version)}

    def push_weights(self) -> int:
        """Publishes the weights under the policy's version, which is given back. A version that is there already stays."""
        return publish(self.engine, self.bus, dtype=self.dtype, parameters=self.parameters)

    def save_checkpoint(self, step: int | None = None) -> bool:
        """Saves weights, optimizer, schedule, version and random states, as `step` or the policy's version; false where nowhere is named.

        Gradients that wait for `optim_step` are not saved.
        """
        if self.save is None:
            return False
        self.save(self.engine.policy_version if step is None else step)
        return True

    def load_checkpoint(self, step: int | None = None) -> int:
        """Takes up a checkpoint, the latest without `step`; gives its step. Raises ValueError where nowhere is named."""
        if self.load is None:
            raise ValueError("no folder of checkpoints is named")
        return self.load(step)

    def get_policy_version(self) -> int:
        """Updates that were made."""
        return self.engine.policy_version

    def close(self) -> None:
        """Lets go of what was opened; more than once does no harm."""
        self.bus.close()
        self.on_close()
        self.on_close = lambda: None
