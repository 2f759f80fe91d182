"""Llama 3 (https://arxiv.org/abs/2407.21783), a pre-norm decoder.

Shapes: B batch, T tokens of a row, P RoPE pairs of a head.
"""

import torch
from torch import Tensor

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.rope import rope_rows, rope_table, rotate


class Llama3(Decoder):
    """Token ids to logits of the next token."""

    config: Llama3Config

    def __init__(self, config: Llama3Config, *, seq_len: int) -> None:
        super().__init__(
            config, [self.layer(config) for _ in range(config.n_layers)], seq_len=seq_len
        )

    @staticmethod
    def layer(config: Llama3Config) -> DecoderLayer:
        """Attention, then SwiGLU."""
        attention = GroupedQueryAttention(
            config, backend=attention_backend(config.attention), turn=rotate
        )
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(dim=config.dim, hidden_dim=config.dense_width()),
        )

    def new_rope_table(self, device: torch.device) -> Tensor:
        """The RoPE table [T, P]; on the meta device only its shape: computing there imports torch's compiler (1 s)."""
        if device.type == "meta":
            return torch.empty(
                self.seq_len, self.config.head_dim // 2, dtype=torch.complex64, device=device
            )
        return rope_table(
            self.config.rope, head_dim=self.config.head_dim, seq_len=self.seq_len, device=device
        )

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of complex numbers [1 or B, T, 1, P]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
