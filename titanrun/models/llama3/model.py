"""Llama 3 (https://arxiv.org/abs/2407.21783), a pre-norm decoder.

Shapes: B batch, T tokens of a row, D model width, N query heads, K key and value heads, H head width, P = H / 2 RoPE pairs,
V vocabulary.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.llama3.config import Llama3Config
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.rope import rope_rows, rope_table, rotate


class Attention(nn.Module):
    """Masked self-attention in which groups of query heads share a key and value head."""

    def __init__(self, config: Llama3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)
        self.backend = attention_backend(config.attention)

    def forward(self, x_BTD: Tensor, rope_BT1P: Tensor, seen: Any) -> Tensor:
        heads = (-1, self.head_dim)
        q_BTNH = rotate(self.wq(x_BTD).unflatten(-1, heads), rope_BT1P)
        k_BTKH = rotate(self.wk(x_BTD).unflatten(-1, heads), rope_BT1P)
        v_BTKH = self.wv(x_BTD).unflatten(-1, heads)
        out_BNTH = self.backend(q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), seen)
        return self.wo(out_BNTH.transpose(1, 2).flatten(2))

    def init_weights(self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None) -> None:
        """Draw the weights; wo, which adds to the residual stream, at `into_stream_std`."""
        for linear in (self.wq, self.wk, self.wv):
            truncated_normal_(linear.weight, std=init.linear_std, bound=init.truncation, generator=generator)
        truncated_normal_(self.wo.weight, std=into_stream_std, bound=init.truncation, generator=generator)


class Llama3(Decoder):
    """Token ids to logits of the next token."""

    config: Llama3Config

    def __init__(self, config: Llama3Config, *, seq_len: int) -> None:
        super().__init__(config, [self.layer(config) for _ in range(config.n_layers)], seq_len=seq_len)

    @staticmethod
    def layer(config: Llama3Config) -> DecoderLayer:
        """Attention, then SwiGLU."""
        return DecoderLayer(config, attention=Attention(config), feed_forward=FeedForward(dim=config.dim, hidden_dim=config.dense_width()))

    def new_rope_table(self, device: torch.device) -> Tensor:
        """The RoPE table [T, P]; on the meta device only its shape: computing there imports torch's compiler (1 s)."""
        if device.type == "meta":
            return torch.empty(self.seq_len, self.config.head_dim // 2, dtype=torch.complex64, device=device)
        return rope_table(self.config.rope, head_dim=self.config.head_dim, seq_len=self.seq_len, device=device)

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of complex numbers [1 or B, T, 1, P]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
