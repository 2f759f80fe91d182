"""Qwen3 (https://arxiv.org/abs/2505.09388), a pre-norm decoder whose queries and keys are normalised, dense or with experts.

Shapes: B batch, T tokens of a row, D model width, N query heads, K key and value heads, H head width.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.qwen3.config import Qwen3Config
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import cos_sin_table, rope_rows, rotate_halves


class Attention(nn.Module):
    """Masked self-attention in which groups of query heads share a key and value head; both are normalised head by head."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.backend = attention_backend(config.attention)

    def forward(self, x_BTD: Tensor, rope_BT1R: Tensor, seen: Any) -> Tensor:
        heads = (-1, self.head_dim)
        q_BTNH = rotate_halves(self.q_norm(self.wq(x_BTD).unflatten(-1, heads)), rope_BT1R)
        k_BTKH = rotate_halves(self.k_norm(self.wk(x_BTD).unflatten(-1, heads)), rope_BT1R)
        v_BTKH = self.wv(x_BTD).unflatten(-1, heads)
        out_BNTH = self.backend(q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), seen)
        return self.wo(out_BNTH.transpose(1, 2).flatten(2))

    def init_weights(self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None) -> None:
        """Draw the weights; wo, which adds to the residual stream, at `into_stream_std`."""
        self.q_norm.reset_parameters()
        self.k_norm.reset_parameters()
        for linear in (self.wq, self.wk, self.wv):
            truncated_normal_(linear.weight, std=init.linear_std, bound=init.truncation, generator=generator)
        truncated_normal_(self.wo.weight, std=into_stream_std, bound=init.truncation, generator=generator)


class Qwen3(Decoder):
    """Token ids to logits of the next token."""

    config: Qwen3Config

    def __init__(self, config: Qwen3Config, *, seq_len: int) -> None:
        super().__init__(config, [self.layer(config) for _ in range(config.n_layers)], seq_len=seq_len)

    @staticmethod
    def layer(config: Qwen3Config) -> DecoderLayer:
        """Attention, then SwiGLU or experts."""
        if config.moe is not None:
            return DecoderLayer(config, attention=Attention(config), moe=Moe(config.moe, dim=config.dim))
        return DecoderLayer(config, attention=Attention(config), feed_forward=FeedForward(dim=config.dim, hidden_dim=config.dense_width()))

    def new_rope_table(self, device: torch.device) -> Tensor:
        """Cosines and sines [T, 2 H]; on the meta device only the shape."""
        if device.type == "meta":
            return torch.empty(self.seq_len, 2 * self.config.head_dim, dtype=torch.float32, device=device)
        return cos_sin_table(self.config.rope.theta, head_dim=self.config.head_dim, seq_len=self.seq_len, device=device)

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of cosines and sines [1 or B, T, 1, 2 H]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
