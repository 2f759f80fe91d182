"""Numbers of the next-token distribution from logits whose vocabulary may be split over ranks; no rank ever holds all of a split one.

Shapes: B rows, T tokens of a row, V vocabulary, W this rank's part of it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup

from titanrun.distributed.shards import own_part, split_over


def label_logprobs(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """log softmax(logits)[label] of each token, in the logits' dtype, on every rank; labels are ids of the vocabulary."""
    group = vocabulary_group(logits_BTV)
    if group is None:
        whole_BTV = own_part(logits_BTV)
        return whole_BTV.gather(-1, labels_BT.unsqueeze(-1)).squeeze(-1) - whole_BTV.logsumexp(-1)
    part_BTW = own_part(logits_BTV)
    each = -(-logits_BTV.size(-1) // group.size())
    inside_BT = labels_BT - group.rank() * each
    is_here_BT = (inside_BT >= 0) & (inside_BT < part_BTW.size(-1))
    found_BT = part_BTW.gather(-1, inside_BT.where(is_here_BT, 0).unsqueeze(-1)).squeeze(-1)
    return Summed.apply(found_BT.where(is_here_BT, 0.0), group) - split_logsumexp(part_BTW, group)


def token_entropy(logits_BTV: Tensor) -> Tensor:
    """Entropy of the next-token distribution of each token in nats, on every rank."""
    group = vocabulary_group(logits_BTV)
    part_BTW = own_part(logits_BTV)
    if group is None:
        logprobs_BTV = part_BTW.log_softmax(-1)
        return -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    logprobs_BTW = part_BTW - split_logsumexp(part_BTW, group).unsqueeze(-1)
    summed: Tensor = Summed.apply((logprobs_BTW.exp() * logprobs_BTW).sum(-1), group)
    return -summed


def token_logsumexp(logits_BTV: Tensor) -> Tensor:
    """log(sum(exp(logits))) of each token, on every rank."""
    group = vocabulary_group(logits_BTV)
    part_BTW = own_part(logits_BTV)
    return part_BTW.logsumexp(-1) if group is None else split_logsumexp(part_BTW, group)


def token_mean(logits_BTV: Tensor) -> Tensor:
    """The mean logit of each token, on every rank."""
    group = vocabulary_group(logits_BTV)
    total_BT = own_part(logits_BTV).sum(-1)
    mean: Tensor = (total_BT if group is None else Summed.apply(total_BT, group)) / logits_BTV.size(
        -1
    )
    return mean


def vocabulary_group(logits_BTV: Tensor) -> ProcessGroup | None:
    """The ranks that hold the other parts of the vocabulary; None where this one holds all of it."""
    groups = split_over(logits_BTV)
    assert len(groups) <= 1, "logits are split over the vocabulary only"
    return groups[0] if groups else None


def split_logsumexp(part_BTW: Tensor, group: ProcessGroup) -> Tensor:
    """log(sum(exp(logits))) over the whole vocabulary."""
    own_BT = part_BTW.logsumexp(-1)
    largest_BT = own_BT.detach().clone()
    dist.all_reduce(largest_BT, dist.ReduceOp.MAX, group=group)
    total: Tensor = Summed.apply((own_BT - largest_BT).exp(), group)
    return largest_BT + total.log()


class Summed(torch.autograd.Function):
    """A sum over ranks which each of them goes on with alike, so that its gradient is already whole on every rank."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, group: ProcessGroup) -> Tensor:
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        return gradients[0], None
