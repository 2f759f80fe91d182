"""Loss computed inside the output head chunk by chunk, without keeping all logits.

Shapes: B batch, T tokens of a sequence, C tokens of a chunk, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.dtensor import is_sharded, to_local
from titanrun.distributed.head_loss import HeadLoss, HeadLossOptions
from titanrun.distributed.head_products import PLAIN_PRODUCTS, HeadProducts, splits_vocabulary
from titanrun.distributed.split_logits import VocabPart
from titanrun.distributed.token_accuracy import TokenAccuracy
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
        accuracy: counts the labels that are the likeliest tokens.
        has_divided_gradients: whether the head did: the loss must not be divided again.
    """

    loss_fn: ChunkLossFn
    labels_BT: Tensor
    weights_BT: Tensor
    divisor: Tensor | None = None
    accuracy: TokenAccuracy | None = None
    has_divided_gradients: bool = False


class ChunkedLMHead:
    """Output head that returns the loss instead of logits, within `capture_loss`.

    A plain or fp32 head computes cross entropy with its gradients, see `HeadLoss`; with tensor
    parallelism each rank for its part of the vocabulary. Otherwise the logits of
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
        self.products = find_head_products(output)
        self.cross_entropy = None if self.products is None else cross_entropy
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
        can_split = is_sharded(stream_BTD) == is_sharded(weight_VD)
        can_split &= not is_sharded(weight_VD) or splits_vocabulary(weight_VD)
        if self.cross_entropy is None or self.products is None or not can_split:
            return self._compute_chunked_loss(stream_BTD, capture.loss_fn)
        capture.has_divided_gradients = True
        divisor = capture.divisor if torch.is_grad_enabled() else None
        return HeadLoss.apply(
            to_replicated_local(stream_BTD)[0].flatten(0, 1),
            to_local(weight_VD),
            capture.labels_BT.flatten(),
            capture.weights_BT.flatten(),
            None if divisor is None else divisor.reciprocal(),
            replace(
                self.cross_entropy,
                products=self.products,
                part=find_vocab_part(weight_VD),
                accuracy=capture.accuracy,
            ),
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


def find_head_products(output: nn.Module) -> HeadProducts | None:
    """Return how a head multiplies, None if it computes more than x W^T.

    Other converted heads, and those with an adapter, do.
    """
    if not isinstance(output, nn.Linear) or output.bias is not None:
        return None
    if type(output).forward is nn.Linear.forward:
        return PLAIN_PRODUCTS
    products: HeadProducts | None = getattr(output, "head_products", None)
    return products


def find_vocab_part(weight_VD: Any) -> VocabPart | None:
    """Return this rank's part of the vocabulary, None if it has all of it."""
    if not is_sharded(weight_VD):
        return None
    group, vocab_size = weight_VD.device_mesh.get_group(), weight_VD.size(0)
    # ranks have as many rows as the first one, the last ones fewer
    each = -(-vocab_size // group.size())
    return VocabPart(group, min(group.rank() * each, vocab_size), vocab_size)


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
