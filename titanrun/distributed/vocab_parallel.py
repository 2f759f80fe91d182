"""Statistics of the next-token distribution from logits whose vocabulary may be sharded.

No rank ever holds the full logits of a sharded vocabulary.

Shapes: B batch, T tokens of a sequence, V vocabulary, W this rank's part of it.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed import ProcessGroup
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from titanrun.distributed.dtensor import get_shard_groups, to_local


def compute_label_logprobs(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Compute label log-probabilities [B, T] in the dtype of the logits.

    These are log softmax(logits)[label]. Labels are ids of the vocabulary. Collective over tp if
    the vocabulary is sharded: every rank gets the result.
    """
    part = get_vocab_part(logits_BTV)
    return gather_logprobs(to_local(logits_BTV), labels_BT.unsqueeze(-1), part).squeeze(-1)


@dataclass(frozen=True, slots=True)
class VocabPart:
    """A rank's part of a sharded vocabulary: its first id, and the ranks that share it."""

    start: int
    group: ProcessGroup


def get_vocab_part(logits_BTV: Tensor) -> VocabPart | None:
    """Return this rank's part of the vocabulary, or None if it holds all of it."""
    group = get_vocab_group(logits_BTV)
    if group is None:
        return None
    return VocabPart(group.rank() * -(-logits_BTV.size(-1) // group.size()), group)


def gather_logprobs(part_BTW: Tensor, ids_BTK: Tensor, part: VocabPart | None) -> Tensor:
    """Compute the log-probabilities of K tokens of the vocabulary at each place, [B, T, K].

    Collective over the ranks that share the vocabulary: every rank gets the result.

    Args:
        part_BTW: this rank's logits.
        ids_BTK: ids of the vocabulary.
        part: where the logits are in the vocabulary, None for all of it.
    """
    if part is None:
        return part_BTW.gather(-1, ids_BTK) - part_BTW.logsumexp(-1, keepdim=True)
    group, inside_BTK = part.group, ids_BTK - part.start
    is_here_BTK = (inside_BTK >= 0) & (inside_BTK < part_BTW.size(-1))
    found_BTK = part_BTW.gather(-1, inside_BTK.where(is_here_BTK, 0))
    logit_BTK = AllReduceSum.apply(found_BTK.where(is_here_BTK, 0.0), group)
    return logit_BTK - compute_vocab_parallel_logsumexp(part_BTW, group).unsqueeze(-1)


def compute_token_entropy(
    logits_BTV: Tensor, *, chunk_tokens: int | None = None, should_recompute: bool = False
) -> Tensor:
    """Compute the entropy of each token's next-token distribution in nats, [B, T].

    Collective over tp if the vocabulary is sharded.

    Args:
        logits_BTV: the logits.
        chunk_tokens: tokens of a sequence whose distributions are in memory at once. None: all.
        should_recompute: whether the backward pass computes the distributions again instead of
            keeping them.
    """
    group, part_BTW = get_vocab_group(logits_BTV), to_local(logits_BTV)
    chunks = (part_BTW,) if chunk_tokens is None else part_BTW.split(chunk_tokens, dim=1)
    return torch.cat(
        [
            checkpoint(compute_chunk_entropy, chunk, group, use_reentrant=False)
            if should_recompute and chunk.requires_grad
            else compute_chunk_entropy(chunk, group)
            for chunk in chunks
        ],
        dim=1,
    )


def compute_chunk_entropy(part_BTW: Tensor, group: ProcessGroup | None) -> Tensor:
    """Compute the entropy of some tokens, [B, T], from this rank's part of their logits."""
    if group is None:
        logprobs_BTV = part_BTW.log_softmax(-1)
        return -(logprobs_BTV.exp() * logprobs_BTV).sum(-1)
    logprobs_BTW = compute_part_logprobs(part_BTW, group)
    return -AllReduceSum.apply((logprobs_BTW.exp() * logprobs_BTW).sum(-1), group)


def compute_part_logprobs(part_BTW: Tensor, group: ProcessGroup | None) -> Tensor:
    """Compute the log-probabilities of this rank's part of the vocabulary, [B, T, W].

    Sum what is computed from them with `AllReduceSum`. Collective over `group`, in the backward
    pass too.
    """
    if group is None:
        return part_BTW.log_softmax(-1)
    log_sum_BT = compute_vocab_parallel_logsumexp(part_BTW, group)
    return part_BTW - AllReduceGradient.apply(log_sum_BT, group).unsqueeze(-1)


def compute_token_logsumexp(logits_BTV: Tensor) -> Tensor:
    """Compute log(sum(exp(logits))) of each token, [B, T].

    Collective over tp if the vocabulary is sharded.
    """
    group = get_vocab_group(logits_BTV)
    part_BTW = to_local(logits_BTV)
    return (
        part_BTW.logsumexp(-1)
        if group is None
        else compute_vocab_parallel_logsumexp(part_BTW, group)
    )


def compute_token_mean_logit(logits_BTV: Tensor) -> Tensor:
    """Compute the mean logit of each token, [B, T].

    Collective over tp if the vocabulary is sharded.
    """
    group = get_vocab_group(logits_BTV)
    total_BT = to_local(logits_BTV).sum(-1)
    mean: Tensor = (
        total_BT if group is None else AllReduceSum.apply(total_BT, group)
    ) / logits_BTV.size(-1)
    return mean


def find_top_tokens(logits_BTV: Tensor) -> Tensor:
    """Return the id with the highest logit of each token, [B, T]; the lowest of several.

    Collective over tp if the vocabulary is sharded.
    """
    part, part_BTW = get_vocab_part(logits_BTV), to_local(logits_BTV)
    if part is None:
        return part_BTW.argmax(-1)
    return reduce_top_tokens(part_BTW, start=part.start, group=part.group)


def reduce_top_tokens(part_BTW: Tensor, *, start: int, group: ProcessGroup) -> Tensor:
    """Return the id with the highest logit of each token, [B, T], from this rank's logits.

    `start` is the first id of this rank's part. Collective over `group`.
    """
    # a rank may have no rows of a small vocabulary
    padded_BTW = pad(part_BTW.float(), (0, 1), value=-math.inf)
    own_BT, index_BT = padded_BTW.max(-1)
    largest_BT = own_BT.clone()
    dist.all_reduce(largest_BT, dist.ReduceOp.MAX, group=group)
    is_here_BT = (own_BT == largest_BT) & (index_BT < part_BTW.size(-1))
    found_BT = (index_BT + start).where(is_here_BT, torch.iinfo(torch.int64).max)
    dist.all_reduce(found_BT, dist.ReduceOp.MIN, group=group)
    return found_BT


def get_vocab_group(logits_BTV: Tensor) -> ProcessGroup | None:
    """Return the ranks that share the vocabulary, or None if this rank holds all of it."""
    groups = get_shard_groups(logits_BTV)
    assert len(groups) <= 1, "logits are sharded over the vocabulary only"
    return groups[0] if groups else None


def compute_vocab_parallel_logsumexp(part_BTW: Tensor, group: ProcessGroup) -> Tensor:
    """Compute log(sum(exp(logits))) over the whole vocabulary. Collective over `group`."""
    own_BT = part_BTW.logsumexp(-1)
    largest_BT = own_BT.detach().clone()
    dist.all_reduce(largest_BT, dist.ReduceOp.MAX, group=group)
    total = AllReduceSum.apply((own_BT - largest_BT).exp(), group)
    return largest_BT + total.log()


class AllReduceGradient(torch.autograd.Function):
    """Value that every rank uses for a part of its own, so that its gradients add up."""

    if TYPE_CHECKING:

        @staticmethod
        def apply(value: Tensor, group: ProcessGroup) -> Tensor:
            """Return the value, which is equal on the ranks of `group`."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, group: ProcessGroup) -> Tensor:
        """Return the value."""
        ctx.group = group  # type: ignore[attr-defined]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        """Sum the gradients of the ranks."""
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)  # type: ignore[attr-defined]
        return total, None


class AllReduceSum(torch.autograd.Function):
    """Sum over ranks that all ranks use in the same way.

    Its gradient is therefore already complete on every rank.
    """

    if TYPE_CHECKING:

        @staticmethod
        def apply(value: Tensor, group: ProcessGroup) -> Tensor:
            """Return the sum over the ranks of `group`."""

    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, group: ProcessGroup) -> Tensor:
        """All-reduce the value."""
        total = value.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Any) -> Any:
        """Return the gradient unchanged."""
        return gradients[0], None
