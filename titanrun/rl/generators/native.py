"""titanrun's own generator: the model with remembered keys and values, in the process that trains."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from titanrun.distributed.shards import fill
from titanrun.models.shared.kv_cache import cached
from titanrun.rl.generators.config import NativeConfig
from titanrun.rl.generators.draws import draw, uniforms
from titanrun.rl.generators.generator import Supplies
from titanrun.rl.samples import Completion, Request
from titanrun.training.generator import read_next, read_prompts


class NativeGenerator:
    """Answers prompts of any lengths together, batch after batch.

    Args:
        config: how many at once.
        supplies: a copy of the policy, and how its tokens are chosen.
    """

    def __init__(self, config: NativeConfig, *, supplies: Supplies) -> None:
        self.model = supplies.model(config.tensor_parallel).eval()
        self.batch_size = config.batch_size
        self.supplies = supplies
        self.version = -1

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], *, temperature: float | None = None
    ) -> list[Completion]:
        """What follows each prompt, until an end token or `max_new_tokens`; `temperature` in the place of the recipe's."""
        found: list[Completion] = []
        given = self.supplies.sampling.temperature if temperature is None else temperature
        for start in range(0, len(requests), self.batch_size):
            with self.supplies.autocast():
                found += self._answer(requests[start : start + self.batch_size], temperature=given)
        return found

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Copies new weights in: parameters in the generator's dtype, buffers in their own."""
        own = self.model.state_dict()
        missing = set(own)
        for name, tensor in weights:
            fill(own[name], tensor)
            missing.discard(name)
        assert not missing, f"weights without {sorted(missing)[:3]}"
        self.version = version

    def close(self) -> None:
        """Nothing is held open."""

    def _answer(self, requests: Sequence[Request], *, temperature: float) -> list[Completion]:
        device = next(self.model.parameters()).device
        prompts = [request.tokens for request in requests]
        lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = max(request.max_new_tokens for request in requests)
        uniform_BS = uniforms([request.seed for request in requests], longest)
        tokens: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        going = [True] * len(requests)
        # a row that has ended goes along, and must not leave the table of positions
        room = max(len(request.tokens) + request.max_new_tokens for request in requests)
        reread = self.supplies.reread
        with cached(self.model, room) if reread is None else nullcontext() as cache:
            logits_BV = (
                read_prompts(self.model, prompts, lengths_B)
                if reread is None
                else reread(self.model, prompts, device=device)
            )
            for step in range(longest):
                drawn = draw(
                    logits_BV, uniform_BS[:, step], self.supplies.sampling, temperature=temperature
                )
                said, sure = drawn.tokens_B.tolist(), drawn.logprobs_B.tolist()
                for row in (row for row, goes in enumerate(going) if goes):
                    tokens[row].append(said[row])
                    logprobs[row].append(sure[row])
                    going[row] = (
                        said[row] not in self.supplies.end_ids
                        and len(tokens[row]) < requests[row].max_new_tokens
                    )
                if not any(going):
                    break
                if reread is not None:
                    logits_BV = reread(
                        self.model,
                        [prompt + own for prompt, own in zip(prompts, tokens, strict=True)],
                        device=device,
                    )
                elif cache is not None:
                    logits_BV = read_next(
                        self.model, cache, said, (lengths_B + step).clamp(max=room - 1)
                    )
        return [self._completion(own, sure) for own, sure in zip(tokens, logprobs, strict=True)]

    def _completion(self, tokens: list[int], logprobs: list[float]) -> Completion:
        return Completion(
            tokens,
            logprobs,
            "stop" if tokens[-1] in self.supplies.end_ids else "length",
            self.version,
        )
