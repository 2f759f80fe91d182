"""Keys and values of tokens that were computed already, so that a next token costs one token's work.

Shapes: B rows, T tokens of a pass, L tokens that a row has room for, N query heads, K key and value heads, H head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from titanrun.models.shared.attention import SdpaAttention


class KvCache:
    """Where the tokens of a pass stand in their rows, for all layers. A row's key stands at its own position, whatever other rows do."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.first_B: Tensor | None = None
        """Position of each row's token; None while the prompts are read, which begin at 0."""


class CachedAttention(nn.Module):
    """An attention back end that remembers keys and values. Prompts go through the back end itself, as they would without a cache.

    Args:
        inner: the layer's own back end.
        cache: shared by all layers.
    """

    def __init__(self, inner: SdpaAttention, cache: KvCache) -> None:
        super().__init__()
        self.inner = inner
        self.cache = cache
        self.mask = inner.mask
        # the kernels of the others want long queries; the scores are the same
        self.one_query = SdpaAttention(inner.mask, scale=inner.scale, soft_cap=inner.soft_cap)
        self.keys_BKLH: Tensor | None = None
        self.values_BKLH: Tensor | None = None

    def seen(
        self,
        queries: int,
        documents_BT: Tensor | None,
        *,
        device: torch.device,
        keys: int | None = None,
    ) -> Any:
        """The inner mask for prompts; for a next token which of the remembered keys it sees: bools [B, 1, 1, L]."""
        first_B = self.cache.first_B
        if first_B is None:
            return self.inner.seen(queries, documents_BT, device=device, keys=keys)
        rows_B11 = torch.arange(first_B.size(0), device=device).view(-1, 1, 1)
        key_L = torch.arange(self.cache.room, device=device)
        return self.mask.sees(rows_B11, first_B.view(-1, 1, 1), key_L, None).unsqueeze(1)

    def forward(
        self,
        q_BNTH: Tensor,
        k_BKTH: Tensor,
        v_BKTH: Tensor,
        seen: Any = None,
        sinks_N: Tensor | None = None,
    ) -> Tensor:
        """As the inner back end; of a next token the query meets all remembered keys."""
        first_B = self.cache.first_B
        if first_B is None:
            self.keys_BKLH, self.values_BKLH = (
                with_room(k_BKTH, self.cache.room),
                with_room(v_BKTH, self.cache.room),
            )
            return self.inner(q_BNTH, k_BKTH, v_BKTH, seen, sinks_N)
        assert self.keys_BKLH is not None and self.values_BKLH is not None, (
            "prompts come before next tokens"
        )
        rows_B = torch.arange(first_B.size(0), device=first_B.device)
        self.keys_BKLH[rows_B, :, first_B] = k_BKTH[:, :, 0]
        self.values_BKLH[rows_B, :, first_B] = v_BKTH[:, :, 0]
        return self.one_query(q_BNTH, self.keys_BKLH, self.values_BKLH, seen, sinks_N)


def with_room(tensor_BKTH: Tensor, room: int) -> Tensor:
    """A copy with room for more tokens: [B, K, L, H]."""
    rows, heads, tokens, width = tensor_BKTH.shape
    made = tensor_BKTH.new_zeros(rows, heads, room, width)
    made[:, :, :tokens] = tensor_BKTH
    return made


@contextmanager
def cached(model: Any, room: int) -> Iterator[KvCache]:
    """Within the block every layer of a decoder remembers its keys and values in the cache that is given."""
    cache = KvCache(room)
    attentions = [layer.attention for layer in model.layers.values()]
    inner = [attention.backend for attention in attentions]
    try:
        for attention in attentions:
            attention.backend = CachedAttention(attention.backend, cache)
        yield cache
    finally:
        for attention, backend in zip(attentions, inner, strict=True):
            attention.backend = backend
