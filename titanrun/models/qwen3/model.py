"""Qwen3 (https://arxiv.org/abs/2505.09388), a pre-norm decoder, dense or with experts.

Queries and keys are normalized.

Shapes: B batch, T tokens of a sequence, H head width.
"""

import torch
from torch import Tensor

from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import (
    apply_rotary_emb_cos_sin,
    build_cos_sin_rope_cache,
    select_rope_positions,
)


class Qwen3(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: Qwen3Config

    def __init__(self, config: Qwen3Config, *, seq_len: int) -> None:
        super().__init__(
            config,
            [self.build_layer(config) for _ in range(unwrap_auto(config.n_layers))],
            seq_len=seq_len,
        )

    @staticmethod
    def build_layer(config: Qwen3Config) -> DecoderLayer:
        """Build a layer of attention, and SwiGLU or experts."""
        attention = GroupedQueryAttention(
            config,
            backend=build_attention_backend(config.attention),
            rotary_fn=apply_rotary_emb_cos_sin,
            qk_norm=True,
        )
        dim, moe = unwrap_auto(config.dim), unwrap_auto(config.moe)
        if moe is not None:
            return DecoderLayer(config, attention=attention, moe=Moe(moe, dim=dim))
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(dim=dim, hidden_dim=config.dense_hidden_dim()),
        )

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the cache of cosines and sines [T, 2 H], with only a shape on the meta device."""
        head_dim = unwrap_auto(self.config.head_dim)
        if device.type == "meta":
            return torch.empty(self.seq_len, 2 * head_dim, dtype=torch.float32, device=device)
        return build_cos_sin_rope_cache(
            unwrap_auto(self.config.rope.theta),
            head_dim=head_dim,
            seq_len=self.seq_len,
            device=device,
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the cache of cosines and sines, [1 or B, T, 1, 2 H]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)
