"""Loss computed inside the output head chunk by chunk, without keeping all logits.

Shapes: B batch, T tokens of a sequence, C tokens of a chunk, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.dtensor import is_sharded

ChunkLossFn = Callable[[Tensor, int, int], Tensor]
"""Loss of the logits [B, C, V] of the tokens from `start` to `end` of each sequence."""


class ChunkedLMHead:
    """Output head that returns the loss instead of logits, within `capture_loss`.

    The logits of a chunk are recomputed in the backward pass, so that only those of one chunk (T /
    num_chunks tokens of each sequence) are in memory at a time. All chunks run inside the head's
    own forward pass, while its weights are gathered.

    Args:
        output: the head, already parallelized.
        num_chunks: number of chunks of each sequence. Shorter sequences have one chunk per token.
        needs_full_logits: whether the loss needs logits that are not split over tensor-parallel
            ranks.
    """

    def __init__(self, output: nn.Module, num_chunks: int, *, needs_full_logits: bool) -> None:
        self.num_chunks, self.needs_full_logits = num_chunks, needs_full_logits
        self._compute_logits: Any = output.forward
        self._chunk_loss_fn: ChunkLossFn | None = None
        # an instance attribute, not a wrapper module: a wrapper would put its name into every
        # parameter's name
        output.forward = self._forward

    @contextmanager
    def capture_loss(self, loss: ChunkLossFn) -> Iterator[None]:
        """Make the model return the loss of its batch within the block."""
        self._chunk_loss_fn = loss
        try:
            yield
        finally:
            self._chunk_loss_fn = None

    def _forward(self, stream_BTD: Tensor) -> Tensor:
        if self._chunk_loss_fn is None:
            logits_BTV: Tensor = self._compute_logits(stream_BTD)
            return logits_BTV
        plain_BTD, again = to_replicated_local(stream_BTD)
        pieces = plain_BTD.chunk(self.num_chunks, dim=1)
        total, start = torch.zeros((), device=plain_BTD.device), 0
        for piece_BCD in pieces:
            end = start + piece_BCD.size(1)
            total = total + checkpoint(
                self._compute_chunk_loss,
                again,
                piece_BCD,
                start,
                end,
                self._chunk_loss_fn,
                use_reentrant=False,
            )
            start = end
        return total

    def _compute_chunk_loss(
        self,
        again: Callable[[Tensor], Tensor],
        piece_BCD: Tensor,
        start: int,
        end: int,
        loss: ChunkLossFn,
    ) -> Tensor:
        """Return the loss of one chunk without keeping its logits."""
        logits_BCV: Any = self._compute_logits(again(piece_BCD))
        if self.needs_full_logits and is_sharded(logits_BCV):
            replicate = import_module("torch.distributed.tensor").Replicate
            logits_BCV = logits_BCV.redistribute(placements=[replicate()]).to_local()
        return loss(logits_BCV, start, end)


def to_replicated_local(stream: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the stream as a plain tensor, and a function from chunks back to DTensors.

    Tensor-parallel ranks hold the whole stream, and each rank holds a partial sum of its gradient.
    Collective over tp if the stream is a DTensor: all ranks must call this.
    """
    if not is_sharded(stream):
        return stream, lambda piece: piece
    tensor = import_module("torch.distributed.tensor")
    mesh, whole, summand = stream.device_mesh, [tensor.Replicate()], [tensor.Partial()]
    gathered = stream.redistribute(placements=whole).to_local(grad_placements=summand)
    return gathered, lambda piece: tensor.DTensor.from_local(
        piece, mesh, whole, run_check=False, grad_placements=summand
    )
