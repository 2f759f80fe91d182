"""Protocols and results of the engine: LR schedule, step outputs, per-token outputs.

Shapes: B sequences, T tokens per sequence, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from titanrun.components.data.token_batch import Batch, TokenBatch, compute_loss_divisor
from titanrun.distributed.dtensor import full_tensor
from titanrun.distributed.vocab_parallel import compute_label_logprobs, compute_token_entropy


class LRSchedule(Protocol):
    """Learning rate as a fraction of its peak."""

    def factor(self, step: int) -> float:
        """Return the fraction for an optimizer step, counted from 0."""


class AveragingOptimizer(Protocol):
    """Optimizer that trains other weights than the averages that it ends with."""

    @property
    def averages(self) -> Mapping[Tensor, Tensor]:
        """Averages by trained weight."""

    def swap_in_averages(self) -> None:
        """Replace the trained weights in the model by their averages."""

    def swap_out_averages(self) -> None:
        """Put the trained weights back into the model."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a forward pass over batches. All tensors stay on the device.

    Args:
        loss_sum: loss summed over the tokens of all ranks.
        valid_tokens: count of valid tokens of all ranks, or the sum of their weights if tokens have
            weights.
        local_loss_sum: the part of the sum that this rank computed.
        accuracy_counts: labels of all ranks that are the likeliest tokens, and all labels in the
            loss, [2]. None if they were not counted.
    """

    loss_sum: Tensor
    valid_tokens: Tensor
    local_loss_sum: Tensor
    accuracy_counts: Tensor | None = None

    @property
    def loss(self) -> Tensor:
        """Mean loss per valid token, 0 if there are no valid tokens."""
        return self.loss_sum / compute_loss_divisor(self.valid_tokens)


@dataclass(frozen=True, slots=True)
class OptimOutput:
    """Result of an optimizer step.

    Args:
        grad_norm: L2 norm of the gradients before clipping, on the device.
        lr: the learning rate used.
        is_skipped: the update was rejected, so that neither weights nor optimizer state changed.
    """

    grad_norm: Tensor
    lr: float
    is_skipped: bool = False


def record_peak_learning_rates(optimizer: Optimizer) -> None:
    """Store the peak learning rate in each group, unless it is there already."""
    for group in optimizer.param_groups:
        group.setdefault("peak_lr", group["lr"])


def set_learning_rates(
    optimizer: Optimizer, lr: float | Sequence[float] | None, *, factor: float
) -> None:
    """Set one learning rate for all groups, or one rate per group.

    If `lr` is None, each group gets its peak times `factor`.
    """
    groups = optimizer.param_groups
    rates = (
        [group["peak_lr"] * factor for group in groups]
        if lr is None
        else [lr] * len(groups)
        if isinstance(lr, float | int)
        else lr
    )
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def find_averaging_optimizer(optimizer: Optimizer) -> AveragingOptimizer | None:
    """Return the optimizer if it keeps averages of the weights, else None."""
    return cast(AveragingOptimizer, optimizer) if hasattr(optimizer, "averages") else None


def as_batch_list(batches: Batch | Sequence[Batch]) -> Sequence[Batch]:
    """Return one batch or several batches as a sequence."""
    return batches if isinstance(batches, Sequence) else [batches]


def concat_outputs(results: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate the outputs of several batches by name."""
    if len(results) == 1:
        return results[0]
    return {name: torch.cat([result[name] for result in results]) for name in results[0]}


def compute_valid_logprobs(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
    """Compute log softmax(logits)[label] [B, T], 0 if the label is not valid."""
    valid_BT = batch.label_mask()
    labels_BT = batch.labels.masked_fill(~valid_BT, 0)
    return compute_label_logprobs(logits_BTV, labels_BT).masked_fill(~valid_BT, 0.0)


def mark_nonfinite_tokens(output_BTV: Tensor, batch: Batch) -> Tensor:
    """Return NaN for each token [B, T] with NaN or infinite outputs that counts in the loss.

    All other tokens are 0.
    """
    return full_tensor((output_BTV * 0).sum(-1)).masked_fill(~batch.label_mask(), 0.0)


OUTPUT_FNS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "logprobs": compute_valid_logprobs,
    "entropy": lambda logits_BTV, batch: compute_token_entropy(logits_BTV),
    "zero_if_finite": mark_nonfinite_tokens,
    "logits": lambda logits_BTV, batch: full_tensor(logits_BTV),
}
