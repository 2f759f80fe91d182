"""Cross entropy of logits whose vocabulary is split over ranks, and its gradient.

A rank exchanges three numbers a token with the others, and never its logits.

Shapes: C tokens, W this rank's part of the vocabulary, S three sums of a token.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class VocabPart:
    """This rank's part of the vocabulary.

    Args:
        group: ranks that share the vocabulary.
        start: first id of the part.
        vocab_size: ids of all ranks.
    """

    group: ProcessGroup
    start: int
    vocab_size: int


def summarize_logit_part(logits_CW: Tensor, own_labels_C: Tensor) -> Tensor:
    """Return log-sum-exp, label logit and sum of this rank's logits, [S, C] in fp32.

    The label logit is 0 if the label, counted from the start of this rank's part, is not in it.
    """
    exact_CW = logits_CW.float()
    is_here_C = (own_labels_C >= 0) & (own_labels_C < logits_CW.size(-1))
    at_label_C1 = own_labels_C.where(is_here_C, 0).unsqueeze(-1)
    label_logit_C = exact_CW.gather(-1, at_label_C1).squeeze(-1).where(is_here_C, 0.0)
    return torch.stack([exact_CW.logsumexp(-1), label_logit_C, exact_CW.sum(-1)])


def reduce_part_summaries(summary_SC: Tensor, group: ProcessGroup) -> Tensor:
    """Return the same three numbers of the whole vocabulary. Collective over `group`."""
    largest_C = summary_SC[0].clone()
    dist.all_reduce(largest_C, dist.ReduceOp.MAX, group=group)
    total_SC = torch.cat([(summary_SC[:1] - largest_C).exp(), summary_SC[1:]])
    dist.all_reduce(total_SC, group=group)
    return torch.cat([largest_C + total_SC[:1].log(), total_SC[1:]])


def compute_part_gradients(
    logits_CW: Tensor,
    own_labels_C: Tensor,
    weights_C: Tensor,
    scale: Tensor | None,
    summary_SC: Tensor,
    vocab_size: int,
    *,
    label_smoothing: float,
    z_loss: float,
) -> tuple[Tensor, Tensor | None]:
    """Return the fp32 loss sum of a chunk, and its gradient with respect to this rank's logits.

    The loss is that of the whole vocabulary, on every rank. The gradient is multiplied by `scale`
    and rounded once, to the dtype of the logits. It is None if `scale` is.
    """
    log_sum_C, label_logit_C, sum_C = summary_SC
    losses_C = log_sum_C - (1 - label_smoothing) * label_logit_C
    if label_smoothing:
        losses_C = losses_C - label_smoothing * sum_C / vocab_size
    if z_loss:
        losses_C = losses_C + z_loss * log_sum_C.square()
    loss = (losses_C * weights_C).masked_fill(weights_C == 0, 0.0).sum()
    if scale is None:
        return loss, None
    # in place: of a large vocabulary every further copy counts
    slope_CW = (logits_CW.float() - log_sum_C.unsqueeze(-1)).exp_()
    if z_loss:
        slope_CW.mul_((1 + 2 * z_loss * log_sum_C).unsqueeze(-1))
    if label_smoothing:
        slope_CW.sub_(label_smoothing / vocab_size)
    slope_CW = add_at_labels(slope_CW, own_labels_C, label_smoothing - 1)
    return loss, slope_CW.mul_((weights_C * scale).unsqueeze(-1)).to(logits_CW.dtype)


def add_at_labels(slope_CW: Tensor, own_labels_C: Tensor, amount: float) -> Tensor:
    """Return the slopes with an amount added at each label, in their memory if possible.

    Labels outside of this rank's part, counted from its start, are left out.
    """
    width = slope_CW.size(-1)
    if torch.compiler.is_compiling():
        # part of the kernel that computes the slopes; a scatter would need them in memory, in fp32
        ids_W = torch.arange(width, device=slope_CW.device)
        return slope_CW + torch.where(ids_W == own_labels_C.unsqueeze(-1), amount, 0.0)
    is_here_C = (own_labels_C >= 0) & (own_labels_C < width)
    at_label_C1 = own_labels_C.where(is_here_C, 0).unsqueeze(-1)
    return slope_CW.scatter_add_(-1, at_label_C1, (is_here_C * amount).unsqueeze(-1))
