"""Finds numbers that a machine computed or kept wrong without a word: a step computed twice, and copies that must be equal.

Nothing here knows what is right: two results that should have the same bits do not.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from titanrun.components.data.batch import Batch
from titanrun.components.metrics.recorder import Recorder
from titanrun.distributed.agreement import Ranks
from titanrun.distributed.checksums import checksum, checksums, differing, odd_copies
from titanrun.distributed.seeds import load_random_states, random_states
from titanrun.training.engine import MODEL_PREFIX, Engine, StepOutput
from titanrun.training.run_checkpoints import shortened

EXIT_CORRUPTION = 70
RANKS_SHOWN = 3


class Corruption(Exception):
    """Bits that differ where they must be equal.

    Args:
        step: the step at which it was noticed.
        what: which bits differ, and on which ranks.
    """

    exit_code = EXIT_CORRUPTION

    def __init__(self, step: int, what: str) -> None:
        self.step = step
        super().__init__(f"at step {step} {what}")


@dataclass(frozen=True, slots=True)
class Doubt:
    """What differs on one rank between two passes over the same batches: kept tensors, its own loss, gradients."""

    host: str
    kept: list[str]
    loss: bool
    gradients: list[str]


@dataclass(slots=True)
class Replay:
    """Computes the gradients of every so many steps twice, and compares them bit by bit; then all copies of weights with each other.

    Args:
        every_steps: how often; None: never.
        ranks: that train together.
    """

    every_steps: int | None = None
    ranks: Ranks = field(default_factory=Ranks)

    def forward_backward(self, engine: Engine, step: int, batches: Sequence[Batch]) -> StepOutput:
        """The engine's `forward_backward` of `step`, of which the gradients are the same bits either way. Raises Corruption."""
        if self.every_steps is None or step % self.every_steps:
            return engine.forward_backward(batches)
        self.compare_copies(engine, step)
        kept, random = checksums(kept_tensors(engine)), random_states(engine.device)
        buffers = {name: buffer.clone() for name, buffer in engine.model.named_buffers()}
        first = engine.forward_backward(batches)
        gradients = checksums(gradients_of(engine))
        engine.zero_grad()
        load_random_states(random, engine.device)
        for name, buffer in engine.model.named_buffers():
            buffer.copy_(buffers[name])
        with Recorder(engine.device).open():
            second = engine.forward_backward(batches)
        doubt = Doubt(
            host=socket.gethostname(),
            kept=differing(kept, checksums(kept_tensors(engine))),
            loss=bool(checksum(first.own_loss_sum) != checksum(second.own_loss_sum)),
            gradients=differing(gradients, checksums(gradients_of(engine))),
        )
        self._judge(step, self.ranks.together(lambda: doubt))
        return second

    def compare_copies(self, engine: Engine, step: int) -> None:
        """Compares weights and optimizer state of which several ranks hold copies; all ranks call it. Raises Corruption."""
        if self.every_steps is None or self.ranks.count == 1:
            return
        found = odd_copies(kept_tensors(engine), self.ranks)
        if found:
            hosts = self.ranks.together(socket.gethostname)
            odd = sorted({rank for ranks in found.values() for rank in ranks})
            raise Corruption(
                step, f"copies of {shortened(sorted(found))} have other bits on {named(odd, hosts)}"
            )

    def _judge(self, step: int, doubts: list[Doubt]) -> None:
        """Raises Corruption for what says most about where it happened: tensors that changed by themselves, a rank's own loss, gradients,
        which hold something of every rank's."""
        hosts = [doubt.host for doubt in doubts]
        kept = {rank: doubt.kept for rank, doubt in enumerate(doubts) if doubt.kept}
        loss = [rank for rank, doubt in enumerate(doubts) if doubt.loss]
        gradients = {rank: doubt.gradients for rank, doubt in enumerate(doubts) if doubt.gradients}
        if kept:
            raise Corruption(
                step,
                f"{shortened(sorted({*chain(*kept.values())}))} changed on {named([*kept], hosts)} while nothing updated them",
            )
        if loss:
            raise Corruption(
                step, f"the same batch gave another loss the second time on {named(loss, hosts)}"
            )
        if gradients:
            names = shortened(sorted({*chain(*gradients.values())}))
            raise Corruption(
                step,
                f"the same batches gave other gradients ({names}) the second time on {named([*gradients], hosts)}",
            )


def kept_tensors(engine: Engine) -> dict[str, Tensor]:
    """What only an update may change: weights and optimizer state."""
    buffers = {MODEL_PREFIX + name for name, _ in engine.model.named_buffers()}
    return {name: tensor for name, tensor in engine.tensors().items() if name not in buffers}


def gradients_of(engine: Engine) -> dict[str, Tensor]:
    """The gradients that this rank holds a part of."""
    return {
        name: parameter.grad
        for name, parameter in engine.model.named_parameters()
        if parameter.grad is not None
    }


def named(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Ranks with their hosts: `rank 3 (gpu-17)`."""
    more = len(ranks) - RANKS_SHOWN
    return ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks[:RANKS_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
