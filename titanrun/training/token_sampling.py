"""Sampling of next tokens from their logits, for text generation and RL.

Shapes: B sequences, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from titanrun.training.config import MIN_TEMPERATURE

MAX_SEED = 2**63


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of token sampling.

    Args:
        temperature: divisor of the logits. Below `MIN_TEMPERATURE`, the most likely token is
            selected.
        top_k: number of most likely tokens to sample from. None: all.
        top_p: sample from the most likely tokens that together have this probability
            (https://arxiv.org/abs/1904.09751).
        seed: seed of the random numbers. Each sequence has its own generator, so that its tokens do
            not depend on the other sequences of the batch.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def get_sequence_seeds(self, count: int) -> list[int]:
        """Return the seeds of `count` sequences."""
        return [(self.seed * 2_654_435_761 + index) % MAX_SEED for index in range(count)]


def uniform_noise(seeds: Sequence[int], count: int) -> Tensor:
    """Draw numbers in [0, 1) for `count` tokens of each sequence, [B, count].

    They depend only on the seed of the sequence.
    """
    return torch.stack(
        [
            torch.rand(count, generator=Generator().manual_seed(seed), dtype=torch.float64)
            for seed in seeds
        ]
    )


def scale_logits(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Return the logits in fp32, divided by the temperature.

    The divisor is 1 where the temperature is below `MIN_TEMPERATURE`: log-probabilities of
    selected tokens are those of the model.

    Args:
        logits: of any shape.
        temperature: a number, or a tensor that broadcasts with the logits.
    """
    if isinstance(temperature, Tensor):
        return logits.float() / torch.where(temperature < MIN_TEMPERATURE, 1.0, temperature)
    return logits.float() / (1.0 if temperature < MIN_TEMPERATURE else temperature)


def sample_tokens(logits_BV: Tensor, noise_B: Tensor, sampling: SamplingParams) -> Tensor:
    """Sample the token [B] at which the cumulative probability first exceeds the noise."""
    if sampling.temperature < MIN_TEMPERATURE:
        return logits_BV.float().argmax(-1)
    kept_BV = apply_top_k(scale_logits(logits_BV, sampling.temperature), sampling.top_k)
    cumulative_BV = apply_top_p(kept_BV, sampling.top_p).double().softmax(-1).cumsum(-1)
    # the last sum may be slightly below 1
    reached_BV = cumulative_BV > (noise_B.to(logits_BV.device) * cumulative_BV[:, -1]).unsqueeze(1)
    return reached_BV.to(torch.uint8).argmax(-1)


def apply_top_k(logits_BV: Tensor, top_k: int | None) -> Tensor:
    """Set all but the `top_k` largest logits of each sequence to -inf."""
    if top_k is None or top_k >= logits_BV.size(-1):
        return logits_BV
    return logits_BV.masked_fill(logits_BV < logits_BV.topk(top_k).values[:, -1:], float("-inf"))


def apply_top_p(logits_BV: Tensor, top_p: float) -> Tensor:
    """Set all logits to -inf but the largest ones that together have probability `top_p`.

    At least one logit of each sequence is kept.
    """
    if top_p >= 1:
        return logits_BV
    sorted_BV, order_BV = logits_BV.sort(descending=True, stable=True)
    before_BV = sorted_BV.softmax(-1).cumsum(-1) - sorted_BV.softmax(-1)
    beyond_BV = torch.zeros_like(before_BV, dtype=torch.bool).scatter(
        -1, order_BV, before_BV >= top_p
    )
    return logits_BV.masked_fill(beyond_BV, float("-inf"))


def gather_token_logprobs(logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """Compute log softmax(logits)[token] [B]."""
    return logits_BV.gather(-1, tokens_B.unsqueeze(-1)).squeeze(-1) - logits_BV.logsumexp(-1)
