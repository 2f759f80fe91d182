"""Batched token sampling with independent random numbers per sequence.

Shapes: B sequences, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.rl.generators.config import SamplingConfig


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Next token of each sequence, and its log-probability at the temperature."""

    tokens_B: Tensor
    logprobs_B: Tensor


def uniform_noise(seeds: list[int], count: int) -> Tensor:
    """Draw numbers in [0, 1) for `count` tokens of each sequence, [B, count].

    They depend only on the seed of the sequence.
    """
    return torch.stack(
        [
            torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            for seed in seeds
        ]
    )


def sample_tokens(
    logits_BV: Tensor, noise_B: Tensor, sampling: SamplingConfig, *, temperature: float
) -> SampledTokens:
    """Sample the token at which the cumulative probability first exceeds the noise.

    At temperature 0, select the most likely token. The log-probability is relative to all tokens,
    as a trainer computes it, not to those that top_p and top_k leave.
    """
    logits_BV = logits_BV.float()
    if temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        return SampledTokens(tokens_B, gather_token_logprobs(logits_BV, tokens_B))
    scaled_BV = logits_BV / temperature
    kept_BV = scaled_BV
    if sampling.top_k is not None and sampling.top_k < scaled_BV.size(-1):
        kept_BV = kept_BV.masked_fill(
            kept_BV < kept_BV.topk(sampling.top_k).values[:, -1:], float("-inf")
        )
    if sampling.top_p < 1:
        sorted_BV, order_BV = kept_BV.sort(descending=True, stable=True)
        before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
        beyond_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(
            -1, order_BV, before_BV >= sampling.top_p
        )
        kept_BV = kept_BV.masked_fill(beyond_BV, float("-inf"))
    cumulative_BV = kept_BV.double().softmax(-1).cumsum(-1)
    # the last sum may be slightly below 1
    reached_BV = cumulative_BV > (noise_B.to(logits_BV.device) * cumulative_BV[:, -1]).unsqueeze(1)
    tokens_B = reached_BV.to(torch.uint8).argmax(-1)
    return SampledTokens(tokens_B, gather_token_logprobs(scaled_BV, tokens_B))


def gather_token_logprobs(logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """Compute log softmax(logits)[token] [B]."""
    return logits_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1) - logits_BV.logsumexp(-1)
