"""Detection of silent data corruption: steps computed twice, and comparison of copies.

It stays unknown which of two results is correct: they should have the same bits but do not.
"""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from torch import Tensor

from titanrun.components.metrics.step_metrics import StepMetrics
from titanrun.config.exit_codes import EXIT_INTERNAL
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.object_collectives import RankGroup
from titanrun.distributed.tensor_checksums import (
    compute_checksum,
    compute_checksums,
    find_differing_names,
    find_mismatched_copies,
)
from titanrun.training.engine import MODEL_PREFIX, Engine
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.snapshot_tensors import format_name_list

MAX_RANKS_SHOWN = 3


class CorruptionError(Exception):
    """Error for bits that must be equal but differ.

    Args:
        step: step at which the difference was detected.
        what: description of the tensors that differ, and the ranks.
    """

    exit_code = EXIT_INTERNAL

    def __init__(self, step: int, what: str) -> None:
        self.step = step
        super().__init__(f"at step {step} {what}")


@dataclass(frozen=True, slots=True)
class ReplayMismatch:
    """Differences on one rank between two passes over the same batches.

    They concern persistent tensors, the loss of this rank, and gradients.
    """

    host: str
    changed_tensors: list[str]
    has_other_loss: bool
    changed_gradients: list[str]


@dataclass(slots=True)
class StepReplay:
    """Bitwise comparison of gradients computed twice, and of weight copies across ranks.

    Only some steps are computed twice.

    Args:
        interval_steps: number of steps between replays. None to disable.
        rank_group: ranks that train together.
    """

    interval_steps: int | None = None
    rank_group: RankGroup = field(default_factory=RankGroup)

    def forward_backward(
        self, engine: Engine, step: int, call: Callable[[], StepOutput]
    ) -> StepOutput:
        """Return the output of `call`, which adds the gradients of `step` to the engine.

        The gradients have the same bits whether or not the step is replayed.

        Raises:
            CorruptionError: the two results, or copies of weights, differ.
        """
        if self.interval_steps is None or step % self.interval_steps:
            return call()
        self.check_copies(engine, step)
        kept, random = (
            compute_checksums(get_persistent_tensors(engine)),
            get_rng_states(engine.device),
        )
        buffers = {name: buffer.clone() for name, buffer in engine.model.named_buffers()}
        first = call()
        gradients = compute_checksums(get_gradients(engine))
        engine.zero_grad()
        set_rng_states(random, engine.device)
        for name, buffer in engine.model.named_buffers():
            buffer.copy_(buffers[name])
        with StepMetrics(engine.device).open():
            second = call()
        doubt = ReplayMismatch(
            host=socket.gethostname(),
            changed_tensors=find_differing_names(
                kept, compute_checksums(get_persistent_tensors(engine))
            ),
            has_other_loss=bool(
                compute_checksum(first.local_loss_sum) != compute_checksum(second.local_loss_sum)
            ),
            changed_gradients=find_differing_names(
                gradients, compute_checksums(get_gradients(engine))
            ),
        )
        self._check_mismatches(step, self.rank_group.all_gather_results(lambda: doubt))
        return second

    def check_copies(self, engine: Engine, step: int) -> None:
        """Check that copies of weights and optimizer state are equal on all ranks. Collective.

        Raises:
            CorruptionError: copies differ.
        """
        if self.interval_steps is None or self.rank_group.size == 1:
            return
        found = find_mismatched_copies(get_persistent_tensors(engine), self.rank_group)
        if found:
            hosts = self.rank_group.all_gather_results(socket.gethostname)
            odd = sorted({rank for ranks in found.values() for rank in ranks})
            raise CorruptionError(
                step,
                f"copies of {format_name_list(sorted(found))} have other bits "
                f"on {format_ranks(odd, hosts)}",
            )

    def _check_mismatches(self, step: int, mismatches: list[ReplayMismatch]) -> None:
        """Raise CorruptionError for the difference that is closest to its origin.

        The order is: tensors that changed without an update, a rank's own loss, and gradients, to
        which all ranks contribute.
        """
        hosts = [doubt.host for doubt in mismatches]
        kept = {
            rank: doubt.changed_tensors
            for rank, doubt in enumerate(mismatches)
            if doubt.changed_tensors
        }
        loss = [rank for rank, doubt in enumerate(mismatches) if doubt.has_other_loss]
        gradients = {
            rank: doubt.changed_gradients
            for rank, doubt in enumerate(mismatches)
            if doubt.changed_gradients
        }
        if kept:
            names = format_name_list(sorted({*chain(*kept.values())}))
            raise CorruptionError(
                step,
                f"{names} changed on {format_ranks([*kept], hosts)} while nothing updated them",
            )
        if loss:
            raise CorruptionError(
                step,
                f"the same batch gave another loss the second time on {format_ranks(loss, hosts)}",
            )
        if gradients:
            names = format_name_list(sorted({*chain(*gradients.values())}))
            raise CorruptionError(
                step,
                f"the same batches gave other gradients ({names}) the second time "
                f"on {format_ranks([*gradients], hosts)}",
            )


def get_persistent_tensors(engine: Engine) -> dict[str, Tensor]:
    """Return the tensors that only an update may change: weights and optimizer state."""
    buffers = {MODEL_PREFIX + name for name, _ in engine.model.named_buffers()}
    return {
        name: tensor for name, tensor in engine.named_state_tensors().items() if name not in buffers
    }


def get_gradients(engine: Engine) -> dict[str, Tensor]:
    """Return the gradients that are at least partly on this rank, by parameter name."""
    return {
        name: parameter.grad
        for name, parameter in engine.model.named_parameters()
        if parameter.grad is not None
    }


def format_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Format ranks with their hosts: `rank 3 (gpu-17)`."""
    more = len(ranks) - MAX_RANKS_SHOWN
    return ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks[:MAX_RANKS_SHOWN]) + (
        f" and {more} more" if more > 0 else ""
    )
