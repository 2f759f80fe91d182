"""Text from a decoder, token after token, with remembered keys and values.

Shapes: B prompts, T tokens of the longest, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from titanrun.models.shared.kv_cache import KvCache, cached
from titanrun.training.sampling import Sampling


@dataclass(slots=True)
class Continuation:
    """What followed a prompt.

    `logprobs` are log softmax(logits)[token], in fp32 and whatever the sampling was. `finish` says why there is no more: `stop` (an end
    token, which is the last one, or a stop text) or `length`.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None


@torch.no_grad()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    end_ids: frozenset[int] = frozenset(),
    stops: Callable[[list[int]], bool] = lambda tokens: False,
) -> list[Continuation]:
    """Continues each prompt until an end token, a stop, or `max_new_tokens`. Prompts of any lengths share the passes.

    Args:
        model: a decoder whose RoPE table has a row for the longest prompt with its continuation.
        prompts: token ids; none is empty.
        max_new_tokens: of each continuation.
        sampling: how tokens are chosen.
        end_ids: tokens after which nothing follows.
        stops: whether a continuation so far ends.
    """
    assert all(prompts), "an empty prompt has no next token"
    device = next(model.parameters()).device
    lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
    found = [Continuation() for _ in prompts]
    draws = [sampling.generator(row) for row in range(len(prompts))]
    was_training = model.training
    model.eval()
    try:
        with cached(model, int(lengths_B.max()) + max_new_tokens) as cache:
            logits_BV = read_prompts(model, prompts, lengths_B)
            for step in range(max_new_tokens):
                for row, continuation in enumerate(found):
                    if continuation.finish is None:
                        take(continuation, logits_BV[row], sampling, draws[row], end_ids, stops)
                if step + 1 == max_new_tokens or all(continuation.finish for continuation in found):
                    break
                logits_BV = read_next(
                    model,
                    cache,
                    [continuation.tokens[-1] for continuation in found],
                    lengths_B + step,
                )
    finally:
        model.train(was_training)
    for continuation in found:
        continuation.finish = continuation.finish or "length"
    return found


def take(
    continuation: Continuation,
    logits_V: Tensor,
    sampling: Sampling,
    draws: torch.Generator,
    end_ids: frozenset[int],
    stops: Callable[[list[int]], bool],
) -> None:
    """Adds the next token to a continuation, and sees whether it ends."""
    token = sampling.next_token(logits_V.float(), draws)
    continuation.tokens.append(token)
    continuation.logprobs.append(float(logits_V.float().log_softmax(-1)[token]))
    if token in end_ids or stops(continuation.tokens):
        continuation.finish = "stop"


def read_prompts(model: Any, prompts: Sequence[Sequence[int]], lengths_B: Tensor) -> Tensor:
    """Logits [B, V] after each prompt. Shorter ones are filled up behind their end, where no token of theirs looks."""
    longest = max(map(len, prompts))
    tokens_BT = torch.zeros(len(prompts), longest, dtype=torch.int64, device=lengths_B.device)
    for row, prompt in enumerate(prompts):
        tokens_BT[row, : len(prompt)] = torch.tensor(prompt)
    logits_BTV: Tensor = model(tokens_BT)
    return logits_BTV[torch.arange(len(prompts), device=lengths_B.device), lengths_B - 1]


def read_next(model: Any, cache: KvCache, tokens: list[int], positions_B: Tensor) -> Tensor:
    """Logits [B, V] after one more token of each row. A row that has ended goes along, unread."""
    cache.first_B = positions_B
    logits_B1V: Tensor = model(
        torch.tensor(tokens, device=positions_B.device).unsqueeze(1), positions_B.unsqueeze(1)
    )
    return logits_B1V[:, 0]
