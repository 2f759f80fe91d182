"""KV cache: stored keys and values, so that decoding computes only the new token.

Shapes: B batch, T tokens of a forward pass, L capacity of the cache in tokens, P tokens of a kept
text, N query heads, K key and value heads, H head width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.models.shared.sdpa_attention import SdpaAttention


class KVCache:
    """Per-sequence write positions of the KV cache, shared by all layers.

    A key is stored at its position in its sequence, independently of other sequences.
    """

    def __init__(self, max_cache_length: int) -> None:
        self.max_cache_length = max_cache_length
        self.first_B: Tensor | None = None
        """Position of each sequence's first new token. None during prefill, which starts at 0."""
        self.attentions: list[CachedAttention] = []
        """Back ends of all layers."""


@dataclass(slots=True)
class KeptText:
    """Keys and values of a text, for a later one with the same beginning.

    Args:
        tokens: tokens of the text whose keys and values are kept.
        layers: keys and values of each layer, [B, K, P, H] with one sequence.
    """

    tokens: list[int] = field(default_factory=list)
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def count_common(self, prompt: Sequence[int]) -> int:
        """Return how many tokens at the start of a prompt are kept, but not all of it.

        The last token of a prompt is always computed, because its output is the next token.
        """
        ends = min(len(self.tokens), len(prompt) - 1)
        pairs = zip(self.tokens[:ends], prompt, strict=False)
        return next((place for place, (one, other) in enumerate(pairs) if one != other), ends)

    def restore(self, cache: KVCache, count: int) -> None:
        """Put keys and values of the first `count` tokens into a cache."""
        for attention, (keys_BKPH, values_BKPH) in zip(cache.attentions, self.layers, strict=True):
            attention.keys_BKLH = pad_to_cache_length(
                keys_BKPH[:, :, :count], cache.max_cache_length
            )
            attention.values_BKLH = pad_to_cache_length(
                values_BKPH[:, :, :count], cache.max_cache_length
            )

    def keep(self, cache: KVCache, tokens: Sequence[int]) -> None:
        """Keep the keys and values of these tokens, which are the first ones of a cache."""
        self.layers = []
        for attention in cache.attentions:
            assert attention.keys_BKLH is not None and attention.values_BKLH is not None
            self.layers.append(
                (
                    attention.keys_BKLH[:, :, : len(tokens)].clone(),
                    attention.values_BKLH[:, :, : len(tokens)].clone(),
                )
            )
        self.tokens = list(tokens)


class CachedAttention(nn.Module):
    """Attention back end with a KV cache. Prefill uses the inner back end as without a cache.

    Args:
        inner: the layer's back end.
        cache: write positions, shared by all layers.
    """

    def __init__(self, inner: SdpaAttention, cache: KVCache) -> None:
        super().__init__()
        self.inner = inner
        self.cache = cache
        self.mask = inner.mask
        # kernels of other back ends need long queries, but the scores are the same
        self.dense = SdpaAttention(inner.mask, scale=inner.scale, soft_cap=inner.soft_cap)
        self.keys_BKLH: Tensor | None = None
        self.values_BKLH: Tensor | None = None

    def build_mask(
        self,
        num_queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        num_keys: int | None = None,
    ) -> Any:
        """Build the inner mask for prefill, or bools [B, 1, T, L] of visible keys for decoding."""
        first_B = self.cache.first_B
        if first_B is None:
            return self.inner.build_mask(
                num_queries, documents_BT, device=device, num_keys=num_keys
            )
        rows_B11 = torch.arange(first_B.size(0), device=device).view(-1, 1, 1)
        key_L = torch.arange(self.cache.max_cache_length, device=device)
        query_BT1 = first_B.view(-1, 1, 1) + torch.arange(num_queries, device=device).view(1, -1, 1)
        return self.mask.allows_attention(rows_B11, query_BT1, key_L, None).unsqueeze(1)

    def forward(
        self,
        q_BNTH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        mask: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """Return the output of the inner back end, or attend to all cached keys when decoding."""
        first_B = self.cache.first_B
        if first_B is None:
            self.keys_BKLH, self.values_BKLH = (
                pad_to_cache_length(k_BKTH, self.cache.max_cache_length),
                pad_to_cache_length(v_BKTH, self.cache.max_cache_length),
            )
            out_BNTH: Tensor = self.inner(q_BNTH, k_BKTH, v_BKTH, mask, sinks_N)
            return out_BNTH
        assert self.keys_BKLH is not None and self.values_BKLH is not None, (
            "prompts come before next tokens"
        )
        rows_B1 = torch.arange(first_B.size(0), device=first_B.device).unsqueeze(1)
        places_BT = first_B.unsqueeze(1) + torch.arange(k_BKTH.size(2), device=first_B.device)
        self.keys_BKLH[rows_B1, :, places_BT] = k_BKTH.transpose(1, 2)
        self.values_BKLH[rows_B1, :, places_BT] = v_BKTH.transpose(1, 2)
        out_BNTH = self.dense(q_BNTH, self.keys_BKLH, self.values_BKLH, mask, sinks_N)
        return out_BNTH


def pad_to_cache_length(tensor_BKTH: Tensor, max_cache_length: int) -> Tensor:
    """Return a copy padded to the capacity of the cache: [B, K, L, H]."""
    rows, heads, tokens, width = tensor_BKTH.shape
    made = tensor_BKTH.new_zeros(rows, heads, max_cache_length, width)
    made[:, :, :tokens] = tensor_BKTH
    return made


@contextmanager
def use_kv_cache(model: Any, max_cache_length: int) -> Iterator[KVCache]:
    """Make every layer of a decoder store its keys and values within the block."""
    cache = KVCache(max_cache_length)
    attentions = [layer.attention for layer in model.layers.values()]
    inner = [attention.backend for attention in attentions]
    try:
        for attention in attentions:
            attention.backend = CachedAttention(attention.backend, cache)
            cache.attentions.append(attention.backend)
        yield cache
    finally:
        for attention, backend in zip(attentions, inner, strict=True):
            attention.backend = backend
