"""How the tokens of many rows are drawn at once, each row by numbers of its own.

Shapes: B rows, V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from titanrun.rl.generators.config import SamplingConfig


@dataclass(frozen=True, slots=True)
class Drawn:
    """The next token of each row, and its log-probability at the temperature."""

    tokens_B: Tensor
    logprobs_B: Tensor


def uniforms(seeds: list[int], count: int) -> Tensor:
    """Numbers in [0, 1) for so many tokens of each row, [B, count]: they depend on the row's seed alone."""
    return torch.stack(
        [
            torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            for seed in seeds
        ]
    )


def draw(
    logits_BV: Tensor, uniform_B: Tensor, sampling: SamplingConfig, *, temperature: float
) -> Drawn:
    """The token at which the cumulated probability first exceeds the row's number; the likeliest where the temperature is 0.

    The log-probability is that of all tokens, as a trainer computes it, not of the few that top_p and top_k leave.
    """
    logits_BV = logits_BV.float()
    if temperature == 0:
        tokens_B = logits_BV.argmax(-1)
        return Drawn(tokens_B, chosen(logits_BV, tokens_B))
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
    cumulated_BV = kept_BV.double().softmax(-1).cumsum(-1)
    # the last sum may be a hair below 1
    reached_BV = cumulated_BV > (uniform_B.to(logits_BV.device) * cumulated_BV[:, -1]).unsqueeze(1)
    tokens_B = reached_BV.to(torch.uint8).argmax(-1)
    return Drawn(tokens_B, chosen(scaled_BV, tokens_B))


def chosen(logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """log softmax(logits)[token]."""
    return logits_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1) - logits_BV.logsumexp(-1)
