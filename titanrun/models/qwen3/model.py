"""Qwen3 (https://arxiv.org/abs/2505.09388), a pre-norm decoder whose queries and keys are normalised, dense or with experts.

Shapes: B batch, T tokens of a row, H head width.
"""

import torch
from torch import Tensor

from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import cos_sin_table, rope_rows, rotate_halves


class Qwen3(Decoder):
    """Token ids to logits of the next token."""

    config: Qwen3Config

    def __init__(self, config: Qwen3Config, *, seq_len: int) -> None:
        super().__init__(
            config, [self.layer(config) for _ in range(config.n_layers)], seq_len=seq_len
        )

    @staticmethod
    def layer(config: Qwen3Config) -> DecoderLayer:
        """Attention, then SwiGLU or experts."""
        attention = GroupedQueryAttention(
            config, backend=attention_backend(config.attention), turn=rotate_halves, qk_norm=True
        )
        if config.moe is not None:
            return DecoderLayer(config, attention=attention, moe=Moe(config.moe, dim=config.dim))
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(dim=config.dim, hidden_dim=config.dense_width()),
        )

    def new_rope_table(self, device: torch.device) -> Tensor:
        """Cosines and sines [T, 2 H]; on the meta device only the shape."""
        if device.type == "meta":
            return torch.empty(
                self.seq_len, 2 * self.config.head_dim, dtype=torch.float32, device=device
            )
        return cos_sin_table(
            self.config.rope.theta,
            head_dim=self.config.head_dim,
            seq_len=self.seq_len,
            device=device,
        )

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of cosines and sines [1 or B, T, 1, 2 H]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
