"""Distillation: divergence from a teacher's predictions, summed over tokens.

Generalized Jensen-Shannon divergence of https://arxiv.org/abs/2306.13649.

Shapes: B sequences, T tokens of a sequence, V vocabulary, W this rank's part of it.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from titanrun.components.data.prediction_channels import TAUGHT_IDS, TAUGHT_LOGPROBS
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.losses.distillation_config import DistillationConfig
from titanrun.components.losses.pair_logprobs import compute_logprobs
from titanrun.components.metrics.step_metrics import record_metric
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.vocab_parallel import (
    AllReduceSum,
    VocabPart,
    compute_part_logprobs,
    gather_logprobs,
    get_vocab_group,
    get_vocab_part,
)

TEACHER_LOGITS = "teacher_logits"
"""Key in a batch's `extra`: the teacher's logits, [B, T, V]."""
CHUNK_TOKENS = 512
"""Tokens of a sequence whose distributions are in memory at once."""


class DistillationLoss:
    """Sum over the valid tokens of the divergence from the teacher.

    With `hard_weight`, the cross entropy of the labels is added.
    """

    def __init__(self, config: DistillationConfig) -> None:
        self.config = config

    def __call__(self, logits_BTV: Tensor, batch: TokenBatch) -> Tensor:
        """Return the sum as an fp32 scalar.

        Collective over tp if the vocabulary is sharded, as it then is for both models.
        """
        config = self.config
        beta, temperature = config.beta, config.temperature
        if config.teacher_logprobs is None:
            divergence_BT = compute_divergence(
                logits_BTV, batch.extra[TEACHER_LOGITS], beta=beta, temperature=temperature
            )
        else:
            divergence_BT = compute_taught_divergence(
                logits_BTV,
                batch.extra[TAUGHT_IDS],
                batch.extra[TAUGHT_LOGPROBS],
                beta=beta,
                temperature=temperature,
            )
        nll_BT = -compute_logprobs(logits_BTV if config.hard_weight else logits_BTV.detach(), batch)
        self._record(divergence_BT, nll_BT, batch)
        loss = batch.sum_valid(divergence_BT)
        return loss + config.hard_weight * batch.sum_valid(nll_BT) if config.hard_weight else loss

    def _record(self, divergence_BT: Tensor, nll_BT: Tensor, batch: TokenBatch) -> None:
        """Record the means of both parts over the valid tokens."""
        valid_BT = batch.label_mask()
        count = valid_BT.sum()
        for name, values_BT in (("divergence", divergence_BT), ("nll", nll_BT)):
            total = values_BT.detach().masked_fill(~valid_BT, 0.0).sum()
            record_metric(f"distillation/{name}", total / count.clamp(min=1), "mean", weight=count)


def compute_divergence(
    student_BTV: Tensor, teacher_BTV: Tensor, *, beta: float, temperature: float
) -> Tensor:
    """Compute the divergence of each token's next-token distributions in nats, [B, T].

    With S the student's distribution, T the teacher's and M = (1 - beta) S + beta T it is
    beta KL(T || M) + (1 - beta) KL(S || M); KL(T || S) for beta 0, and KL(S || T) for beta 1. It is
    computed in fp32 at least, and again in the backward pass, instead of keeping distributions.
    """
    group = get_vocab_group(student_BTV)
    compute = partial(compute_chunk_divergence, group=group, beta=beta, temperature=temperature)
    chunks = zip(
        to_local(student_BTV).split(CHUNK_TOKENS, dim=1),
        to_local(teacher_BTV).split(CHUNK_TOKENS, dim=1),
        strict=True,
    )
    return torch.cat(
        [
            checkpoint(compute, student_BCW, teacher_BCW, use_reentrant=False)
            if student_BCW.requires_grad
            else compute(student_BCW, teacher_BCW)
            for student_BCW, teacher_BCW in chunks
        ],
        dim=1,
    )


def compute_chunk_divergence(
    student_BTW: Tensor,
    teacher_BTW: Tensor,
    *,
    group: ProcessGroup | None,
    beta: float,
    temperature: float,
) -> Tensor:
    """Compute the divergence of some tokens, [B, T], from this rank's part of their logits."""
    student_BTW, teacher_BTW = (
        normalize(logits_BTW, group, temperature) for logits_BTW in (student_BTW, teacher_BTW)
    )
    total_BT = compute_terms(student_BTW, teacher_BTW, beta).sum(-1)
    return total_BT if group is None else AllReduceSum.apply(total_BT, group)


def compute_taught_divergence(
    student_BTV: Tensor, ids_BTK: Tensor, logprobs_BTK: Tensor, *, beta: float, temperature: float
) -> Tensor:
    """Compute the divergence of each token over the teacher's K likeliest tokens, [B, T].

    All other tokens count as one token more. It is the divergence over the vocabulary if there are
    none. Collective over tp if the vocabulary is sharded.

    Args:
        student_BTV: the student's logits.
        ids_BTK: ids of the teacher's likeliest tokens.
        logprobs_BTK: their log-probabilities, at the same temperature.
        beta: kind of divergence, see `compute_divergence`.
        temperature: divisor of the student's logits.
    """
    part = get_vocab_part(student_BTV)
    compute = partial(compute_taught_chunk, part=part, beta=beta, temperature=temperature)
    chunks = zip(
        *(
            tensor.split(CHUNK_TOKENS, dim=1)
            for tensor in (to_local(student_BTV), ids_BTK, logprobs_BTK)
        ),
        strict=True,
    )
    return torch.cat(
        [
            checkpoint(compute, *chunk, use_reentrant=False)
            if chunk[0].requires_grad
            else compute(*chunk)
            for chunk in chunks
        ],
        dim=1,
    )


def compute_taught_chunk(
    student_BTW: Tensor,
    ids_BTK: Tensor,
    logprobs_BTK: Tensor,
    *,
    part: VocabPart | None,
    beta: float,
    temperature: float,
) -> Tensor:
    """Compute the divergence of some tokens, as `compute_taught_divergence` does, [B, T]."""
    dtype = torch.promote_types(student_BTW.dtype, torch.float32)
    student_BTK = gather_logprobs(student_BTW.to(dtype) / temperature, ids_BTK, part)
    return compute_terms(add_rest(student_BTK), add_rest(logprobs_BTK.to(dtype)), beta).sum(-1)


def add_rest(logprobs_BTK: Tensor) -> Tensor:
    """Add the log-probability of all other tokens together, [B, T, K + 1].

    It is that of the rounding error at least, which a difference from 1 has.
    """
    rest_BT1 = 1 - logprobs_BTK.exp().sum(-1, keepdim=True)
    least = torch.finfo(logprobs_BTK.dtype).eps
    return torch.cat((logprobs_BTK, rest_BT1.clamp(min=least).log()), dim=-1)


def compute_terms(student_BTW: Tensor, teacher_BTW: Tensor, beta: float) -> Tensor:
    """Return the terms of the divergence, whose sum it is, of two log-probabilities."""
    if beta == 0.0:
        return weigh_log_ratio(teacher_BTW, student_BTW)
    if beta == 1.0:
        return weigh_log_ratio(student_BTW, teacher_BTW)
    mixture_BTW = torch.logaddexp(student_BTW + math.log1p(-beta), teacher_BTW + math.log(beta))
    terms_BTW = beta * weigh_log_ratio(teacher_BTW, mixture_BTW)
    return terms_BTW + (1 - beta) * weigh_log_ratio(student_BTW, mixture_BTW)


def normalize(logits_BTW: Tensor, group: ProcessGroup | None, temperature: float) -> Tensor:
    """Return the log-probabilities of this rank's part of the vocabulary, in fp32 at least."""
    scaled_BTW = logits_BTW.to(torch.promote_types(logits_BTW.dtype, torch.float32)) / temperature
    return compute_part_logprobs(scaled_BTW, group)


def weigh_log_ratio(log_p_BTW: Tensor, log_q_BTW: Tensor) -> Tensor:
    """Return p (log p - log q), the terms of KL(p || q)."""
    return log_p_BTW.exp() * (log_p_BTW - log_q_BTW)
