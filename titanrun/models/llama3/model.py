"""Llama 3 (https://arxiv.org/abs/2407.21783), a pre-norm decoder.

Shapes: B batch, T tokens of a sequence, P RoPE pairs of a head.
"""

import torch
from torch import Tensor

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.rope import (
    apply_rotary_emb_complex,
    build_complex_rope_cache,
    select_rope_positions,
)


class Llama3(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: Llama3Config

    def __init__(self, config: Llama3Config, *, seq_len: int) -> None:
        super().__init__(
            config,
            [self.build_layer(config) for _ in range(unwrap_auto(config.n_layers))],
            seq_len=seq_len,
        )

    @staticmethod
    def build_layer(config: Llama3Config) -> DecoderLayer:
        """Build a layer of attention and SwiGLU."""
        attention = GroupedQueryAttention(
            config,
            backend=build_attention_backend(config.attention),
            rotary_fn=apply_rotary_emb_complex,
        )
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(
                dim=unwrap_auto(config.dim), hidden_dim=config.dense_hidden_dim()
            ),
        )

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the RoPE cache [T, P], with only a shape on the meta device.

        Computing on the meta device would import torch's compiler (1 s).
        """
        head_dim = unwrap_auto(self.config.head_dim)
        if device.type == "meta":
            return torch.empty(self.seq_len, head_dim // 2, dtype=torch.complex64, device=device)
        return build_complex_rope_cache(
            self.config.rope, head_dim=head_dim, seq_len=self.seq_len, device=device
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the RoPE cache, complex [1 or B, T, 1, P]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)
