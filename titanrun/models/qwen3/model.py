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


class TransformerBlock(nn.Module):
    """One decoder layer: attention, then feed-forward or experts, each on the normalised stream and added to it."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        if config.moe is None:
            self.feed_forward = FeedForward(dim=config.dim, hidden_dim=config.feed_forward.hidden_dim)
        else:
            self.moe = Moe(config.moe, dim=config.dim)
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.has_experts = config.moe is not None

    def forward(self, x_BTD: Tensor, rope_BT1R: Tensor, seen: Any) -> Tensor:
        h_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rope_BT1R, seen)
        hidden = self.moe if self.has_experts else self.feed_forward
        return h_BTD + hidden(self.ffn_norm(h_BTD))

    def init_weights(self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None) -> None:
        """Draw the layer's weights; `into_stream_std` is the std of what adds to the residual stream, and of w3."""
        attention = self.attention
        for norm in (self.attention_norm, self.ffn_norm, attention.q_norm, attention.k_norm):
            norm.reset_parameters()

        def draw(linear: nn.Linear, std: float) -> None:
            truncated_normal_(linear.weight, std=std, bound=init.truncation, generator=generator)

        for linear in (attention.wq, attention.wk, attention.wv):
            draw(linear, init.linear_std)
        draw(attention.wo, into_stream_std)
        if self.has_experts:
            self.moe.init_weights(init, into_stream_std=into_stream_std, generator=generator)
            return
        draw(self.feed_forward.w1, init.linear_std)
        draw(self.feed_forward.w2, into_stream_std)
        draw(self.feed_forward.w3, into_stream_std)


class Qwen3(Decoder):
    """Token ids to logits of the next token."""

    config: Qwen3Config

    def __init__(self, config: Qwen3Config, *, seq_len: int) -> None:
        super().__init__(config, [TransformerBlock(config) for _ in range(config.n_layers)], seq_len=seq_len)

    def new_rope_table(self, device: torch.device) -> Tensor:
        """Cosines and sines [T, 2 H]; on the meta device only the shape."""
        if device.type == "meta":
            return torch.empty(self.seq_len, 2 * self.config.head_dim, dtype=torch.float32, device=device)
        return cos_sin_table(self.config.rope.theta, head_dim=self.config.head_dim, seq_len=self.seq_len, device=device)

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of cosines and sines [1 or B, T, 1, 2 H]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)
