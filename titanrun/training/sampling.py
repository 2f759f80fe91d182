"""How a next token is chosen from its logits.

Shapes: V vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which next token is taken.

    Args:
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens; None: all.
        top_p: only the likeliest tokens that together have this probability (https://arxiv.org/abs/1904.09751).
        seed: of the draws. Each row draws for itself, so that what it gets does not depend on the rows beside it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def generator(self, row: int) -> Generator:
        """The draws of one row."""
        return Generator().manual_seed(self.seed * 2_654_435_761 + row)

    def next_token(self, logits_V: Tensor, generator: Generator) -> int:
        """The id of the token that is taken, by fp32 logits."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        kept_V = nucleus(
            likeliest(logits_V.float().cpu() / self.temperature, self.top_k), self.top_p
        )
        return int(torch.multinomial(kept_V.softmax(-1), 1, generator=generator))


def likeliest(logits_V: Tensor, count: int | None) -> Tensor:
    """Logits of which all but the `count` largest are -inf."""
    if count is None or count >= logits_V.numel():
        return logits_V
    return logits_V.masked_fill(logits_V < logits_V.topk(count).values[-1], float("-inf"))


def nucleus(logits_V: Tensor, share: float) -> Tensor:
    """Logits of which only the likeliest stay that together have `share` of the probability, and at least one."""
    if share >= 1:
        return logits_V
    sorted_V, order_V = logits_V.sort(descending=True)
    before_V = sorted_V.softmax(-1).cumsum(-1) - sorted_V.softmax(-1)
    return logits_V.masked_fill(
        torch.zeros_like(before_V, dtype=torch.bool).scatter(0, order_V, before_V >= share),
        float("-inf"),
    )
