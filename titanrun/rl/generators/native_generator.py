"""titanrun's own generator: the model with a KV cache, in the training process."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from titanrun.distributed.dtensor import copy_full_into_
from titanrun.models.shared.kv_cache import KVCache, use_kv_cache
from titanrun.rl.generators.config import NativeConfig
from titanrun.rl.generators.decoding_batch import DecodingBatch
from titanrun.rl.generators.generator_protocol import GeneratorResources
from titanrun.rl.rollout_types import Completion, GenerateRequest
from titanrun.training.decoding import decode_step, prefill
from titanrun.training.token_sampling import SamplingParams

# tokens of each completion between two looks for new weights
BURST_TOKENS = 16


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
        self._num_loads = 0

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
        for start in range(0, len(requests), self.batch_size):
            found += self._generate_batch(
                requests[start : start + self.batch_size], temperature=temperature
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
        self._num_loads += 1

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def start_batch(self, requests: Sequence[GenerateRequest]) -> DecodingBatch:
        """Return a batch of these prompts without any tokens."""
        return DecodingBatch(
            requests,
            end_ids=self.resources.end_ids,
            version=self.version,
            device=next(self.model.parameters()).device,
        )

    @torch.no_grad()
    def iter_bursts(
        self, batch: DecodingBatch, *, temperature: float | None = None
    ) -> Iterator[None]:
        """Generate a batch in bursts of tokens, and yield between two of them.

        New weights that are loaded there generate the tokens that follow.
        """
        config, updates = self.resources.sampling, self.resources.updates
        sampling = SamplingParams(
            config.temperature if temperature is None else temperature, config.top_k, config.top_p
        )
        is_cached = self.resources.batch_invariant_forward is None
        with use_kv_cache(self.model, batch.max_length) if is_cached else nullcontext() as cache:
            needs_prefill = True
            while True:
                num_loads = self._num_loads
                with self.weights.swap_in():
                    self._decode_burst(batch, cache, sampling, needs_prefill=needs_prefill)
                if not batch.has_active:
                    return
                yield
                needs_prefill = False
                if self._num_loads != num_loads:
                    batch.start_version(self.version)
                    needs_prefill = updates is None or updates.resets_cache

    def _generate_batch(
        self, requests: Sequence[GenerateRequest], *, temperature: float | None
    ) -> list[Completion]:
        """Generate in bursts, between which new weights may be loaded."""
        batch, updates, version = self.start_batch(requests), self.resources.updates, self.version
        loads: list[tuple[int, int]] = []
        for _ in self.iter_bursts(batch, temperature=temperature):
            if updates is not None and (update := updates.take()) is not None:
                self.load(update.weights, version=update.version)
                loads.append((batch.num_steps, self.version))
        # validation, at a temperature of its own, is not replayed
        if self.resources.log is not None and temperature is None:
            self.resources.log.add(requests, version, loads)
        return batch.build_completions()

    def _decode_burst(
        self,
        batch: DecodingBatch,
        cache: KVCache | None,
        sampling: SamplingParams,
        *,
        needs_prefill: bool,
    ) -> None:
        """Generate up to `BURST_TOKENS` tokens of each completion.

        Args:
            batch: the completions.
            cache: keys and values so far. None: each token is computed from all before it.
            sampling: how tokens are chosen.
            needs_prefill: whether the cache holds nothing of the current weights.
        """
        for index in range(BURST_TOKENS):
            if cache is None:
                forward = self.resources.batch_invariant_forward
                assert forward is not None, "there is a cache otherwise"
                logits_BV = forward(self.model, batch.sequences, device=batch.device)
            elif needs_prefill and index == 0:
                cache.first_B = None
                sequences = batch.sequences
                lengths_B = torch.tensor(list(map(len, sequences)), device=batch.device)
                logits_BV = prefill(self.model, sequences, lengths_B)
            else:
                logits_BV = decode_step(
                    self.model, cache, batch.last_tokens, batch.last_positions_B
                )
            batch.append(logits_BV, sampling)
            if not batch.has_active:
                return
