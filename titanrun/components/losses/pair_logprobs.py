"""Log-probabilities of compared replies, for the losses of preferences.

Shapes: B sequences, T tokens of a sequence, V vocabulary. Each sequence holds a pair: document 0
ends with the preferred reply, document 1 with the rejected one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch
from titanrun.components.metrics.step_metrics import record_metric
from titanrun.distributed.vocab_parallel import compute_label_logprobs

REFERENCE_LOGPROBS = "reference_logprobs"
"""Key in a batch's `extra`: the log-probability of each label under the reference, [B, T]."""
NLL_SCALE = "nll_scale"
"""Key in a batch's `extra`: pairs of the step per token of the cross entropy, [B, 1].

A loss of pairs is divided by the number of pairs, a mean over tokens by the number of tokens. In
validation it is 1 per token of the sequence."""


@dataclass(frozen=True, slots=True)
class PairLogprobs:
    """Sums over the compared replies of each sequence, [B].

    Sequences without a label in the loss are not pairs: their values are 0, with 1 token.

    Args:
        chosen: log-probability of the preferred reply.
        rejected: log-probability of the other one.
        chosen_tokens: number of tokens of the preferred reply.
        rejected_tokens: number of tokens of the other one.
        is_pair: whether the sequence is a pair.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    is_pair: Tensor

    def normalize(self) -> "PairLogprobs":
        """Return the means over tokens instead of the sums."""
        return PairLogprobs(
            self.chosen / self.chosen_tokens,
            self.rejected / self.rejected_tokens,
            self.chosen_tokens,
            self.rejected_tokens,
            self.is_pair,
        )

    def sum(self, losses_B: Tensor) -> Tensor:
        """Return the sum of a value over the pairs."""
        return losses_B.masked_fill(~self.is_pair, 0.0).sum()

    def mean(self, values_B: Tensor) -> Tensor:
        """Return the mean of a value over the pairs, without gradients."""
        return self.sum(values_B.detach()) / self.is_pair.sum().clamp(min=1)


def compute_logprobs(logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
    """Compute the log-probability of every label in fp32, [B, T]."""
    labels_BT = batch.labels.masked_fill(batch.labels == IGNORE_INDEX, 0)
    return compute_label_logprobs(logits_BTV.float(), labels_BT)


def sum_pair_logprobs(logprobs_BT: Tensor, batch: TokenBatch) -> PairLogprobs:
    """Sum the log-probabilities of labels over the compared replies."""
    assert batch.document_ids is not None, "a rule requires documents by positions"
    valid_BT = batch.label_mask()
    in_reply_BT = [valid_BT & (batch.document_ids == number) for number in (0, 1)]
    chosen_B, rejected_B = (
        logprobs_BT.masked_fill(~mask_BT, 0.0).sum(1) for mask_BT in in_reply_BT
    )
    chosen_tokens_B, rejected_tokens_B = (mask_BT.sum(1).clamp(min=1) for mask_BT in in_reply_BT)
    return PairLogprobs(
        chosen_B, rejected_B, chosen_tokens_B, rejected_tokens_B, is_pair=valid_BT.any(1)
    )


def subtract_reference(logprobs_BT: Tensor, batch: TokenBatch) -> Tensor:
    """Return how much likelier each label is than under the reference, [B, T]."""
    return logprobs_BT - batch.extra[REFERENCE_LOGPROBS]


def get_nll_mask(batch: TokenBatch, *, includes_prompt: bool = False) -> Tensor:
    """Return the mask of the preferred conversations' tokens in the cross entropy, [B, T].

    The compared reply counts, or with `includes_prompt` all tokens but the first.
    """
    documents_BT = batch.document_ids
    assert documents_BT is not None, "a rule requires documents by positions"
    valid_BT = batch.label_mask()
    if not includes_prompt:
        return valid_BT & (documents_BT == 0)
    # the label of a document's last token belongs to the next document
    next_BT = torch.cat([documents_BT[:, 1:], documents_BT[:, -1:]], dim=1)
    return (documents_BT == 0) & (next_BT == 0) & valid_BT.any(1, keepdim=True)


def scale_nll(logprobs_BT: Tensor, mask_BT: Tensor, batch: TokenBatch) -> Tensor:
    """Return the cross entropy [B] of the tokens in a mask, as a sum that is divided by pairs.

    After the division it is the mean over the tokens of the whole step.
    """
    return -(logprobs_BT * batch.extra[NLL_SCALE]).masked_fill(~mask_BT, 0.0).sum(1)


def smooth_logsigmoid_loss(logits_B: Tensor, smoothing: float) -> Tensor:
    """Return -log sigmoid(logits) where a share of the labels may be swapped."""
    return -(1 - smoothing) * logsigmoid(logits_B) - smoothing * logsigmoid(-logits_B)


def record_rewards(name: str, chosen_B: Tensor, rejected_B: Tensor, *, pairs: PairLogprobs) -> None:
    """Record the rewards of both replies, their margin, and how often it is positive."""
    margins_B = chosen_B - rejected_B
    values_B = {
        "accuracy": (margins_B > 0).float(),
        "margin": margins_B,
        "chosen_reward": chosen_B,
        "rejected_reward": rejected_B,
    }
    for key, value_B in values_B.items():
        record_pair_mean(f"{name}/{key}", value_B, pairs)


def record_pair_mean(name: str, values_B: Tensor, pairs: PairLogprobs) -> None:
    """Record the mean of a value over the pairs."""
    record_metric(name, pairs.mean(values_B), "mean", weight=pairs.is_pair.sum())
