"""Autoregressive text generation with a KV cache.

Shapes: B prompts, T tokens of the longest prompt, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from titanrun.models.shared.kv_cache import KeptText, KVCache, use_kv_cache
from titanrun.training.token_sampling import (
    SamplingParams,
    gather_token_logprobs,
    sample_tokens,
    uniform_noise,
)


@dataclass(slots=True)
class Continuation:
    """Generated continuation of a prompt.

    `logprobs` are log softmax(logits)[token] in fp32, independent of the sampling parameters.
    `top_logprobs` are the most likely tokens of each position with theirs, if they are asked for.
    `finish` is the reason for the end: `stop` (an end token, which is the last token, or a stop
    text) or `length`.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    finish: str | None = None


@torch.no_grad()
def generate(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: SamplingParams,
    eos_ids: frozenset[int] = frozenset(),
    should_stop: Callable[[list[int]], bool] = lambda tokens: False,
    num_top_logprobs: int = 0,
    kept: KeptText | None = None,
) -> list[Continuation]:
    """Generate a continuation of each prompt, in one batch.

    Generation ends at an end token, if `should_stop` returns True, or after `max_new_tokens`.
    Prompts may differ in length.

    Args:
        model: a decoder whose RoPE cache covers the longest prompt with its continuation.
        prompts: token ids. Prompts must not be empty.
        max_new_tokens: their limit.
        sampling: how tokens are chosen.
        eos_ids: end tokens.
        should_stop: returns whether a continuation, given its tokens so far, ends.
        num_top_logprobs: number of most likely tokens to return of each position.
        kept: what an earlier text of this model has kept, for a single prompt. Afterwards it is of
            this prompt and its continuation, without the last token, which was not computed.
    """
    assert all(prompts), "an empty prompt has no next token"
    device = next(model.parameters()).device
    lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
    found = [Continuation() for _ in prompts]
    noise_BS = uniform_noise(sampling.get_sequence_seeds(len(prompts)), max_new_tokens)
    capacity = int(lengths_B.max()) + max_new_tokens
    with evaluation_mode(model), use_kv_cache(model, capacity) as cache:
        logits_BV = prefill_unkept(model, cache, kept, prompts, lengths_B)
        for step in range(max_new_tokens):
            # on the CPU, so that a seed gives the same tokens on every device
            logits_BV = logits_BV.float().cpu()
            tokens_B = sample_tokens(logits_BV, noise_BS[:, step], sampling)
            if num_top_logprobs:
                append_top_logprobs(found, logits_BV, num_top_logprobs)
            append_tokens(found, logits_BV, tokens_B, eos_ids, should_stop)
            if step + 1 == max_new_tokens or all(continuation.finish for continuation in found):
                break
            last = [continuation.tokens[-1] for continuation in found]
            logits_BV = decode_step(model, cache, last, lengths_B + step)
        if kept is not None:
            kept.keep(cache, [*prompts[0], *found[0].tokens[:-1]])
    return [replace(one, finish=one.finish or "length") for one in found]


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Put a model into evaluation mode within the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def append_tokens(
    continuations: Sequence[Continuation],
    logits_BV: Tensor,
    tokens_B: Tensor,
    eos_ids: frozenset[int],
    should_stop: Callable[[list[int]], bool],
) -> None:
    """Append a token to each continuation that has not ended, and set `finish` if it ends now."""
    logprobs = gather_token_logprobs(logits_BV, tokens_B).tolist()
    for continuation, token, logprob in zip(
        continuations, tokens_B.tolist(), logprobs, strict=True
    ):
        if continuation.finish is not None:
            continue
        continuation.tokens.append(token)
        continuation.logprobs.append(logprob)
        if token in eos_ids or should_stop(continuation.tokens):
            continuation.finish = "stop"


def append_top_logprobs(
    continuations: Sequence[Continuation], logits_BV: Tensor, count: int
) -> None:
    """Append the most likely tokens to each continuation that has not ended."""
    logprobs_BV = logits_BV.log_softmax(-1)
    top = logprobs_BV.topk(min(count, logits_BV.size(-1)))
    for continuation, tokens, values in zip(
        continuations, top.indices.tolist(), top.values.tolist(), strict=True
    ):
        if continuation.finish is None:
            continuation.top_logprobs.append(dict(zip(tokens, values, strict=True)))


def prefill(model: Any, prompts: Sequence[Sequence[int]], lengths_B: Tensor) -> Tensor:
    """Compute logits [B, V] after each prompt.

    Shorter prompts are padded at their end, where causal attention hides the padding.
    """
    longest = max(map(len, prompts))
    tokens_BT = torch.zeros(len(prompts), longest, dtype=torch.int64, device=lengths_B.device)
    for index, prompt in enumerate(prompts):
        tokens_BT[index, : len(prompt)] = torch.tensor(prompt)
    logits_BTV: Tensor = model(tokens_BT)
    return logits_BTV[torch.arange(len(prompts), device=lengths_B.device), lengths_B - 1]


def prefill_unkept(
    model: Any,
    cache: KVCache,
    kept: KeptText | None,
    prompts: Sequence[Sequence[int]],
    lengths_B: Tensor,
) -> Tensor:
    """Compute logits [B, V] after each prompt, without what is kept of a single one."""
    common = 0 if kept is None else kept.count_common(prompts[0])
    if kept is None or not common:
        return prefill(model, prompts, lengths_B)
    kept.restore(cache, common)
    prompt, device = prompts[0], lengths_B.device
    cache.first_B = torch.tensor([common], device=device)
    rest_BT = torch.tensor([prompt[common:]], device=device)
    positions_BT = torch.arange(common, len(prompt), device=device).unsqueeze(0)
    logits_BTV: Tensor = model(rest_BT, positions_BT)
    return logits_BTV[:, -1]


def decode_step(model: Any, cache: KVCache, tokens: list[int], positions_B: Tensor) -> Tensor:
    """Compute logits [B, V] after one more token of each sequence.

    Finished sequences stay in the batch; their logits are ignored.
    """
    cache.first_B = positions_B
    logits_B1V: Tensor = model(
        torch.tensor(tokens, device=positions_B.device).unsqueeze(1), positions_B.unsqueeze(1)
    )
    return logits_B1V[:, 0]
