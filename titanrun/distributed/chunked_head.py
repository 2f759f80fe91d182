"""A loss that reads the stream before the output head, piece by piece: no rank ever holds the logits of all its tokens.

Shapes: B rows, T tokens of a row, C tokens of a piece, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.shards import is_split

LossOfPiece = Callable[[Tensor, int, int], Tensor]
"""The loss of logits [B, C, V] of the tokens from one number up to another of each row."""


class ChunkedHead:
    """Makes a model's output head give the loss in place of logits, within `reading`.

    The logits of a piece are computed again in the backward pass, so that those of one piece are held at a time: T / pieces of each row.
    Everything happens within the head's own pass, while whoever shards its weights has them gathered.

    Args:
        output: the head, laid out over the ranks.
        pieces: how many each row is cut into; as many as it has tokens where these are fewer.
        whole_vocabulary: whether the loss wants logits whole that tensor-parallel ranks split.
    """

    def __init__(self, output: nn.Module, pieces: int, *, whole_vocabulary: bool) -> None:
        self.pieces, self.whole_vocabulary = pieces, whole_vocabulary
        self._logits: Any = output.forward
        self._loss: LossOfPiece | None = None
        # an instance attribute, not a wrapper module: a wrapper would put its name into every parameter's name
        output.forward = self._forward

    @contextmanager
    def reading(self, loss: LossOfPiece) -> Iterator[None]:
        """Within the block the model gives the loss of its batch."""
        self._loss = loss
        try:
            yield
        finally:
            self._loss = None

    def _forward(self, stream_BTD: Tensor) -> Tensor:
        if self._loss is None:
            logits_BTV: Tensor = self._logits(stream_BTD)
            return logits_BTV
        plain_BTD, again = unplaced(stream_BTD)
        pieces = plain_BTD.chunk(self.pieces, dim=1)
        total, start = torch.zeros((), device=plain_BTD.device), 0
        for piece_BCD in pieces:
            end = start + piece_BCD.size(1)
            total = total + checkpoint(
                self._loss_of, again, piece_BCD, start, end, self._loss, use_reentrant=False
            )
            start = end
        return total

    def _loss_of(
        self,
        again: Callable[[Tensor], Tensor],
        piece_BCD: Tensor,
        start: int,
        end: int,
        loss: LossOfPiece,
    ) -> Tensor:
        """The loss of one piece; its logits are not kept."""
        logits_BCV: Any = self._logits(again(piece_BCD))
        if self.whole_vocabulary and is_split(logits_BCV):
            replicate = import_module("torch.distributed.tensor").Replicate
            logits_BCV = logits_BCV.redistribute(placements=[replicate()]).to_local()
        return loss(logits_BCV, start, end)


def unplaced(stream: Any) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The stream as a plain tensor, and what makes a piece of it a tensor of the same device mesh again.

    Tensor-parallel ranks hold the whole stream, and of its gradient each a summand.
    """
    if not is_split(stream):
        return stream, lambda piece: piece
    tensor = import_module("torch.distributed.tensor")
    mesh, whole, summand = stream.device_mesh, [tensor.Replicate()], [tensor.Partial()]
    gathered = stream.redistribute(placements=whole).to_local(grad_placements=summand)
    return gathered, lambda piece: tensor.DTensor.from_local(
        piece, mesh, whole, run_check=False, grad_placements=summand
    )
