"""Llama 4 (https://ai.meta.com/blog/llama-4-multimodal-intelligence), its text model: a pre-norm decoder with experts in every n-th layer,
and layers without RoPE between layers with it.

Shapes: B batch, T tokens of a row, D model width, N query heads, K key and value heads, H head width, P = H / 2 RoPE pairs, S = P + 1.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.models.llama4.config import Llama4Config
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import rope_rows, rope_table, rotate


class Attention(nn.Module):
    """Masked self-attention in which groups of query heads share a key and value head.

    Layers with RoPE may normalise queries and keys. Layers without sharpen attention with the position, so that it does not spread over
    ever more keys (https://arxiv.org/abs/2501.19399).
    """

    def __init__(self, config: Llama4Config, *, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.uses_rope = config.uses_rope(layer)
        self.sharpens = config.attn_scale > 0
        self.qk_norm_eps = config.norm_eps if config.qk_norm else None
        self.wq = nn.Linear(config.dim, config.n_heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.n_kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.n_heads * config.head_dim, config.dim, bias=False)
        self.backend = attention_backend(config.attention, block=config.block(layer))

    def forward(self, x_BTD: Tensor, rope_BT1S: Tensor, seen: Any) -> Tensor:
        heads = (-1, self.head_dim)
        q_BTNH, k_BTKH, v_BTKH = (
            linear(x_BTD).unflatten(-1, heads) for linear in (self.wq, self.wk, self.wv)
        )
        if self.uses_rope:
            q_BTNH, k_BTKH = (self.turned(part, rope_BT1S[..., :-1]) for part in (q_BTNH, k_BTKH))
        elif self.sharpens:
            q_BTNH = (q_BTNH.float() * rope_BT1S[..., -1:].real).type_as(q_BTNH)
        out_BNTH = self.backend(
            q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), seen
        )
        return self.wo(out_BNTH.transpose(1, 2).flatten(2))

    def turned(self, x_BTNH: Tensor, rope_BT1P: Tensor) -> Tensor:
        """Queries or keys with their position, normalised if the config says so."""
        x_BTNH = rotate(x_BTNH, rope_BT1P)
        if self.qk_norm_eps is None:
            return x_BTNH
        return F.rms_norm(x_BTNH.float(), (self.head_dim,), eps=self.qk_norm_eps).type_as(x_BTNH)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; wo, which adds to the residual stream, at `into_stream_std`."""
        for linear in (self.wq, self.wk, self.wv):
            truncated_normal_(
                linear.weight, std=init.linear_std, bound=init.truncation, generator=generator
            )
        truncated_normal_(
            self.wo.weight, std=into_stream_std, bound=init.truncation, generator=generator
        )


class Llama4(Decoder):
    """Token ids to logits of the next token."""

    config: Llama4Config

    def __init__(self, config: Llama4Config, *, seq_len: int) -> None:
        super().__init__(
            config, [self.layer(config, index) for index in range(config.n_layers)], seq_len=seq_len
        )

    @staticmethod
    def layer(config: Llama4Config, index: int) -> DecoderLayer:
        """Attention, then experts in every n-th layer, SwiGLU in all others."""
        attention = Attention(config, layer=index)
        if config.has_experts(index):
            return DecoderLayer(config, attention=attention, moe=Moe(config.moe, dim=config.dim))
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(dim=config.dim, hidden_dim=config.dense_width()),
        )

    def new_rope_table(self, device: torch.device) -> Tensor:
        """The RoPE table [T, S], complex: what turns each pair, and what layers without RoPE multiply queries with; on the meta device
        only its shape. One table, since both are looked up by position, and no complex number is cast to another precision."""
        config = self.config
        if device.type == "meta":
            return torch.empty(
                self.seq_len, config.head_dim // 2 + 1, dtype=torch.complex64, device=device
            )
        table_TP = rope_table(
            config.rope, head_dim=config.head_dim, seq_len=self.seq_len, device=device
        )
        return torch.cat(
            [table_TP, sharpening(config, self.seq_len, device=device).unsqueeze(1)], dim=1
        )

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of complex numbers [1 or B, T, 1, S]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)


def sharpening(config: Llama4Config, seq_len: int, *, device: torch.device) -> Tensor:
    """What queries at each position are multiplied by [T]: it grows with the logarithm of how many floor_scale tokens are seen."""
    seen_T = torch.arange(1, seq_len + 1, dtype=torch.float32, device=device)
    return 1 + config.attn_scale * torch.log1p((seen_T / config.floor_scale).floor())
