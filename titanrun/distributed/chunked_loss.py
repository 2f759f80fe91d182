"""Loss computed inside the output head chunk by chunk, without keeping all logits.

Shapes: B batch, T tokens of a sequence, C tokens of a chunk, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.dtensor import is_sharded
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions
from titanrun.distributed.torch_versions import select_from_local

ChunkLossFn = Callable[[Tensor, int, int], Tensor]
"""Loss of the logits [B, C, V] of the tokens from `start` to `end` of each sequence."""


@dataclass(slots=True)
class LossCapture:
    """Loss that the head computes instead of logits.

    Args:
        loss_fn: the loss of a chunk's logits.
        labels_BT: labels of the cross entropy.
        weights_BT: weight of each label in fp32, 0 if it does not count.
        divisor: what gradients are divided by if the head computes them itself.
        has_divided_gradients: whether the head did: the loss must not be divided again.
    """

    loss_fn: ChunkLossFn
    labels_BT: Tensor
    weights_BT: Tensor
    divisor: Tensor | None = None
    has_divided_gradients: bool = False


class ChunkedLMHead:
    """Output head that returns the loss instead of logits, within `capture_loss`.

    A plain head computes cross entropy with its gradients, see `HeadLoss`. Otherwise the logits of
    a chunk are recomputed in the backward pass. Either way only the logits of one chunk (one of
    `num_chunks`) are in memory at a time. All chunks run inside the head's own forward pass, while
    its weights are gathered.

    Args:
        output: the head, already parallelized.
        num_chunks: number of chunks. Short batches have one chunk per token.
        needs_full_logits: whether the loss needs logits that are not split over tensor-parallel
            ranks.
        cross_entropy: the loss, if it is a cross entropy. None for other losses.
    """

    def __init__(
        self,
        output: nn.Module,
        num_chunks: int,
        *,
        needs_full_logits: bool,
        cross_entropy: HeadLossOptions | None = None,
    ) -> None:
        self.num_chunks, self.needs_full_logits = num_chunks, needs_full_logits
        self.cross_entropy = cross_entropy if has_plain_product(output) else None
        self._output: Any = output
        self._compute_logits: Any = output.forward
        self._capture: LossCapture | None = None
        # an instance attribute, not a wrapper module: a wrapper would put its name into every
        # parameter's name
        output.forward = self._forward

    @contextmanager
    def capture_loss(self, capture: LossCapture) -> Iterator[None]:
        """Make the model return the loss of its batch within the block."""
        self._capture = capture
        try:
            yield
        finally:
            self._capture = None

    def _forward(self, stream_BTD: Tensor) -> Tensor:
        capture = self._capture
        if capture is None:
            logits_BTV: Tensor = self._compute_logits(stream_BTD)
            return logits_BTV
        weight_VD = self._output.weight
        is_split = is_sharded(stream_BTD) or is_sharded(weight_VD)
        if self.cross_entropy is None or is_split:
            return self._compute_chunked_loss(stream_BTD, capture.loss_fn)
        capture.has_divided_gradients = True
        divisor = capture.divisor if torch.is_grad_enabled() else None
        return HeadLoss.apply(
            stream_BTD.flatten(0, 1),
            weight_VD,
            capture.labels_BT.flatten(),
            capture.weights_BT.flatten(),
            None if divisor is None else divisor.reciprocal(),
            self.cross_entropy,
        )

    def _compute_chunked_loss(self, stream_BTD: Tensor, loss_fn: ChunkLossFn) -> Tensor:
        """Compute the loss of chunks whose logits are recomputed in the backward pass."""
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
                loss_fn,
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


def has_plain_product(output: nn.Module) -> bool:
    """Return whether a head computes nothing but x W^T.

    Converted heads, and those with an adapter, have another forward pass.
    """
    return (
        isinstance(output, nn.Linear)
        and type(output).forward is nn.Linear.forward
        and output.bias is None
    )


def to_replicated_local(stream: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the stream as a plain tensor, and a function from chunks back to DTensors.

    Tensor-parallel ranks hold the whole stream, and each rank holds a partial sum of its gradient.
    Collective over tp if the stream is a DTensor: all ranks must call this.
    """
    if not is_sharded(stream):
        return stream, lambda piece: piece
    tensor, from_local = import_module("torch.distributed.tensor"), select_from_local()
    mesh, whole, summand = stream.device_mesh, [tensor.Replicate()], [tensor.Partial()]
    gathered = stream.redistribute(placements=whole).to_local(grad_placements=summand)
    return gathered, lambda piece: from_local(piece, mesh, whole, grad_placements=summand)
