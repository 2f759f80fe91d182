"""titanrun's own generator: the model with a KV cache, in the training process."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from titanrun.distributed.dtensor import copy_full_into_
from titanrun.models.shared.kv_cache import use_kv_cache
from titanrun.rl.generators.config import NativeConfig
from titanrun.rl.generators.generator_protocol import GeneratorResources
from titanrun.rl.rollout_types import Completion, GenerateRequest
from titanrun.training.decoding import decode_step, prefill
from titanrun.training.token_sampling import (
    SamplingParams,
    gather_token_logprobs,
    sample_tokens,
    scale_logits,
    uniform_noise,
)


class NativeGenerator:
    """Batched generator. Prompts in a batch may differ in length.

    Args:
        config: the batch size.
        resources: builds a copy of the policy, and defines how its tokens are chosen.
    """

    def __init__(self, config: NativeConfig, *, resources: GeneratorResources) -> None:
        self.model = resources.build_model(config.tensor_parallel).eval()
        self.weights = resources.build_working_weights(self.model)
        self.batch_size = config.batch_size
        self.resources = resources
        self.version = -1

    @torch.no_grad()
    def generate(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None = None
    ) -> list[Completion]:
        """Generate a completion of each prompt, until an end token or `max_new_tokens`.

        Args:
            requests: the prompts.
            temperature: replaces the recipe's temperature.
        """
        found: list[Completion] = []
        config = self.resources.sampling
        sampling = SamplingParams(
            config.temperature if temperature is None else temperature, config.top_k, config.top_p
        )
        for start in range(0, len(requests), self.batch_size):
            with self.weights.swap_in():
                found += self._generate_batch(
                    requests[start : start + self.batch_size], sampling=sampling
                )
        return found

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Copy new weights: parameters are cast to the generator's dtype, buffers keep theirs."""
        own = self.model.state_dict()
        missing = set(own)
        for name, tensor in weights:
            copy_full_into_(own[name], tensor)
            missing.discard(name)
        assert not missing, f"weights without {sorted(missing)[:3]}"
        self.version = version

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _generate_batch(
        self, requests: Sequence[GenerateRequest], *, sampling: SamplingParams
    ) -> list[Completion]:
        device = next(self.model.parameters()).device
        prompts = [request.tokens for request in requests]
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = max(request.max_new_tokens for request in requests)
        uniform_BS = uniform_noise([request.seed for request in requests], longest)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        active = [True] * len(requests)
        # finished sequences stay in the batch and must not exceed the RoPE cache
        max_length = max(len(request.tokens) + request.max_new_tokens for request in requests)
        forward = self.resources.batch_invariant_forward
        with use_kv_cache(self.model, max_length) if forward is None else nullcontext() as cache:
            logits_BV = (
                prefill(self.model, prompts, lengths_B)
                if forward is None
                else forward(self.model, prompts, device=device)
            )
            for step in range(longest):
                tokens_B = sample_tokens(logits_BV, uniform_BS[:, step], sampling)
                # of all tokens, as a trainer computes them, not of those that top_p and top_k leave
                scaled_BV = scale_logits(logits_BV, sampling.temperature)
                token_logprobs = gather_token_logprobs(scaled_BV, tokens_B).tolist()
                token_ids = tokens_B.tolist()
                for index in (index for index, is_active in enumerate(active) if is_active):
                    tokens[index].append(token_ids[index])
                    logprobs[index].append(token_logprobs[index])
                    active[index] = (
                        token_ids[index] not in self.resources.end_ids
                        and len(tokens[index]) < requests[index].max_new_tokens
                    )
                if not any(active):
                    break
                if forward is not None:
                    sequences = [prompt + own for prompt, own in zip(prompts, tokens, strict=True)]
                    logits_BV = forward(self.model, sequences, device=device)
                elif cache is not None:
                    positions_B = (lengths_B + step).clamp(max=max_length - 1)
                    logits_BV = decode_step(self.model, cache, token_ids, positions_B)
        return [
            self._build_completion(own, own_logprobs)
            for own, own_logprobs in zip(tokens, logprobs, strict=True)
        ]

    def _build_completion(self, tokens: list[int], logprobs: list[float]) -> Completion:
        return Completion(
            tokens,
            logprobs,
            "stop" if tokens[-1] in self.resources.end_ids else "length",
            self.version,
        )
