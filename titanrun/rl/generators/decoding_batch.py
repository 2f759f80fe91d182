"""Completions of a batch of prompts while they are generated.

Shapes: B prompts, S longest completion, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from titanrun.rl.rollout_types import Completion, GenerateRequest
from titanrun.training.token_sampling import (
    SamplingParams,
    gather_token_logprobs,
    sample_tokens,
    scale_logits,
    uniform_noise,
)


class DecodingBatch:
    """Tokens, log-probabilities and versions of each completion so far.

    Completions that have ended stay in the batch, and get no further tokens.

    Args:
        requests: the prompts.
        end_ids: tokens after which a completion ends.
        version: version of the weights.
        device: device of the model.
    """

    def __init__(
        self,
        requests: Sequence[GenerateRequest],
        *,
        end_ids: frozenset[int],
        version: int,
        device: torch.device,
    ) -> None:
        self.requests, self.end_ids, self.device = requests, end_ids, device
        longest = max(request.max_new_tokens for request in requests)
        self.uniform_BS = uniform_noise([request.seed for request in requests], longest)
        self.tokens: list[list[int]] = [[] for _ in requests]
        self.logprobs: list[list[float]] = [[] for _ in requests]
        self.version_runs: list[list[tuple[int, int]]] = [[(0, version)] for _ in requests]
        self.active = [True] * len(requests)
        self.num_steps = 0
        self.last_tokens: list[int] = []

    @property
    def has_active(self) -> bool:
        """Whether any completion goes on."""
        return any(self.active)

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt with its longest completion."""
        return max(len(request.tokens) + request.max_new_tokens for request in self.requests)

    @property
    def sequences(self) -> list[list[int]]:
        """All tokens of each prompt and its completion so far."""
        return [
            request.tokens + own for request, own in zip(self.requests, self.tokens, strict=True)
        ]

    @property
    def last_positions_B(self) -> Tensor:
        """Position of the last token of each sequence."""
        lengths_B = torch.tensor(
            [len(request.tokens) for request in self.requests], device=self.device
        )
        # sequences that have ended must not exceed the RoPE cache
        return (lengths_B + self.num_steps - 1).clamp(max=self.max_length - 1)

    def start_version(self, version: int) -> None:
        """Note that the next tokens are of other weights."""
        for runs, own, is_active in zip(self.version_runs, self.tokens, self.active, strict=True):
            if is_active and version != runs[-1][1]:
                runs.append((len(own), version))

    def append(self, logits_BV: Tensor, sampling: SamplingParams) -> None:
        """Sample a token of each completion that goes on."""
        tokens_B = sample_tokens(logits_BV, self.uniform_BS[:, self.num_steps], sampling)
        # of all tokens, as a trainer computes them, not of those that top_p and top_k leave
        scaled_BV = scale_logits(logits_BV, sampling.temperature)
        token_logprobs = gather_token_logprobs(scaled_BV, tokens_B).tolist()
        self.last_tokens = tokens_B.tolist()
        self.num_steps += 1
        for index, own in enumerate(self.tokens):
            if self.active[index]:
                own.append(self.last_tokens[index])
                self.logprobs[index].append(token_logprobs[index])
                self.active[index] = (
                    own[-1] not in self.end_ids and len(own) < self.requests[index].max_new_tokens
                )

    def build_completions(self) -> list[Completion]:
        """Return the completion of each prompt."""
        return [
            Completion(
                own,
                own_logprobs,
                "stop" if own[-1] in self.end_ids else "length",
                min(version for _, version in runs),
                tuple(runs) if len(runs) > 1 else (),
            )
            for own, own_logprobs, runs in zip(
                self.tokens, self.logprobs, self.version_runs, strict=True
            )
        ]
