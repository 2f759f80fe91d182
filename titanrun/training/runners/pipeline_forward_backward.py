"""Forward and backward passes of microbatches through a pipeline of ranks.

Shapes: B sequences, M sequences of a microbatch, T tokens per sequence, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from titanrun.components.data.token_batch import TokenBatch, build_document_kwargs
from titanrun.config.suggest import format_word_list
from titanrun.distributed.dtensor import full_tensor
from titanrun.distributed.pipeline import Pipeline, StageInputs
from titanrun.distributed.token_accuracy import TokenAccuracy
from titanrun.distributed.working_weights import WorkingWeights
from titanrun.training.runners.forward_backward import Loss, OutputFn, count_top_labels

BatchOrMicrobatches = TokenBatch | Sequence[TokenBatch]


@dataclass(frozen=True, slots=True)
class PipelineForwardBackward:
    """Passes on a rank that has the layers of its pipeline stages.

    The last stage computes the loss; on all other ranks it is zero. A batch is split into
    microbatches unless microbatches are passed.
    """

    accepts_microbatches: ClassVar[bool] = True
    pipeline: Pipeline
    loss: Loss
    weights: WorkingWeights

    def forward_backward(
        self, batch: BatchOrMicrobatches, divisor: Tensor, *, loss: Loss | None = None
    ) -> Tensor:
        """Add the gradients of the loss sum, divided by `divisor`, and return the undivided sum."""
        parts, sums, measured = self._to_microbatches(batch), [], loss or self.loss

        def compute_microbatch_loss(logits_MTV: Tensor, number: int) -> Tensor:
            loss_sum = measured(logits_MTV, parts[number])
            sums.append(loss_sum.detach().clone())
            return loss_sum / divisor

        with self.weights.swap_in():
            self.pipeline.forward_backward(
                [build_stage_inputs(part) for part in parts], compute_microbatch_loss
            )
        return self._sum_losses(sums)

    @torch.no_grad()
    def compute_loss_sum(
        self,
        batch: BatchOrMicrobatches,
        *,
        loss: Loss | None = None,
        accuracy: TokenAccuracy | None = None,
    ) -> Tensor:
        """Compute the loss sum without gradients."""
        parts, measured = self._to_microbatches(batch), loss or self.loss

        def compute_microbatch_loss(logits_MTV: Tensor, number: int) -> Tensor:
            count_top_labels(accuracy, logits_MTV, parts[number])
            return measured(logits_MTV, parts[number])

        with self.weights.swap_in():
            sums = self.pipeline.forward(
                [build_stage_inputs(part) for part in parts], compute_microbatch_loss
            )
        return self._sum_losses(sums)

    @torch.no_grad()
    def compute_outputs(self, batch: BatchOrMicrobatches, output_fn: OutputFn) -> dict[str, Tensor]:
        """Apply `output_fn` to the logits, without gradients.

        The result is broadcast to all stages.
        """
        parts = self._to_microbatches(batch)
        inputs = [build_stage_inputs(part) for part in parts]
        with self.weights.swap_in():
            found = self.pipeline.forward(
                inputs, lambda logits_MTV, number: output_fn(logits_MTV, parts[number])
            )
        return self._broadcast_from_last_stage(
            {name: torch.cat([part[name] for part in found]) for name in found[0]} if found else {}
        )

    def _to_microbatches(self, batch: BatchOrMicrobatches) -> list[TokenBatch]:
        """Return microbatches.

        Raises:
            ValueError: the given microbatches differ in shape.
        """
        if isinstance(batch, TokenBatch):
            return batch.split(self.pipeline.plan.microbatch_size)
        shapes = sorted({tuple(part.tokens.shape) for part in batch})
        if len(shapes) > 1:
            raise ValueError(
                "the microbatches of a pipeline must have equal shapes, but these have "
                f"{format_word_list(map(str, shapes), conjunction='and')}"
            )
        return list(batch)

    def _sum_losses(self, sums: list[Tensor]) -> Tensor:
        return torch.stack(sums).sum() if sums else torch.zeros((), device=self.pipeline.device)

    def _broadcast_from_last_stage(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Broadcast the outputs of the last stage to all ranks of the pipeline."""
        pipeline = self.pipeline
        # shape of a DTensor is its full shape, also if it is sharded over tp
        box = [{name: (tensor.shape, tensor.dtype) for name, tensor in found.items()}]
        dist.broadcast_object_list(
            box, group=pipeline.group, group_src=pipeline.last_rank, device=pipeline.device
        )
        whole = {}
        for name, (shape, dtype) in box[0].items():
            whole[name] = (
                full_tensor(found[name]).contiguous()
                if found
                else torch.empty(shape, dtype=dtype, device=pipeline.device)
            )
            dist.broadcast(whole[name], group=pipeline.group, group_src=pipeline.last_rank)
        return whole


def build_stage_inputs(batch: TokenBatch) -> StageInputs:
    """Build the tokens and the keyword arguments that every stage gets.

    Positions are always included: a later stage cannot count them, because its inputs may be only a
    part of each sequence.
    """
    positions = batch.positions
    if positions is None:
        positions = torch.arange(batch.tokens.size(1), device=batch.tokens.device).expand_as(
            batch.tokens
        )
    return StageInputs(batch.tokens, {"positions_BT": positions, **build_document_kwargs(batch)})
