"""Sampling of the next token from its logits.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of token sampling.

    Args:
        temperature: divisor of the logits. 0 selects the most likely token.
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

    def build_rng(self, index: int) -> Generator:
        """Build the random number generator of one sequence."""
        return Generator().manual_seed(self.seed * 2_654_435_761 + index)

    def sample_token(self, logits_V: Tensor, rng: Generator) -> int:
        """Sample a token id from fp32 logits."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        kept_V = apply_top_p(
            apply_top_k(logits_V.float().cpu() / self.temperature, self.top_k), self.top_p
        )
        return int(torch.multinomial(kept_V.softmax(-1), 1, generator=rng))


def apply_top_k(logits_V: Tensor, top_k: int | None) -> Tensor:
    """Set all but the `top_k` largest logits to -inf."""
    if top_k is None or top_k >= logits_V.numel():
        return logits_V
    return logits_V.masked_fill(logits_V < logits_V.topk(top_k).values[-1], float("-inf"))


def apply_top_p(logits_V: Tensor, top_p: float) -> Tensor:
    """Set all logits to -inf but the largest ones that together have probability `top_p`.

    At least one logit is kept.
    """
    if top_p >= 1:
        return logits_V
    sorted_V, order_V = logits_V.sort(descending=True)
    before_V = sorted_V.softmax(-1).cumsum(-1) - sorted_V.softmax(-1)
    return logits_V.masked_fill(
        torch.zeros_like(before_V, dtype=torch.bool).scatter(0, order_V, before_V >= top_p),
        float("-inf"),
    )
