"""Text model of Llama 4: experts in every n-th layer, and some layers without RoPE.

It is a pre-norm decoder, see https://ai.meta.com/blog/llama-4-multimodal-intelligence.

Shapes: B batch, T tokens of a sequence, D model width, N query heads, K key and value heads, H head
width, P = H / 2 RoPE pairs, S = P + 1.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.models.llama4.config import Llama4Config
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import (
    apply_rotary_emb_complex,
    build_complex_rope_cache,
    select_rope_positions,
)
from titanrun.models.shared.weight_init import truncated_normal_


class Llama4Attention(nn.Module):
    """Masked self-attention in which groups of query heads share a key and value head.

    Layers with RoPE may normalize queries and keys. Layers without RoPE sharpen attention with the
    position, so that it does not spread over ever more keys (https://arxiv.org/abs/2501.19399).
    """

    def __init__(self, config: Llama4Config, *, layer: int) -> None:
        super().__init__()
        dim, (q_width, kv_width) = unwrap_auto(config.dim), config.projection_dims()
        self.head_dim = unwrap_auto(config.head_dim)
        self.uses_rope = config.uses_rope(layer)
        self.tunes_temperature = unwrap_auto(config.attn_scale) > 0
        self.qk_norm_eps = unwrap_auto(config.norm_eps) if config.qk_norm else None
        self.wq = nn.Linear(dim, q_width, bias=False)
        self.wk = nn.Linear(dim, kv_width, bias=False)
        self.wv = nn.Linear(dim, kv_width, bias=False)
        self.wo = nn.Linear(q_width, dim, bias=False)
        self.backend = build_attention_backend(
            config.attention, block=config.get_attention_chunk_size(layer)
        )

    def forward(self, x_BTD: Tensor, rope_BT1S: Tensor, mask: Any) -> Tensor:
        """Return the attention output [B, T, D]."""
        heads = (-1, self.head_dim)
        q_BTNH, k_BTKH, v_BTKH = (
            linear(x_BTD).unflatten(-1, heads) for linear in (self.wq, self.wk, self.wv)
        )
        if self.uses_rope:
            q_BTNH, k_BTKH = (
                self.apply_rotary_emb(part, rope_BT1S[..., :-1]) for part in (q_BTNH, k_BTKH)
            )
        elif self.tunes_temperature:
            q_BTNH = (q_BTNH.float() * rope_BT1S[..., -1:].real).type_as(q_BTNH)
        out_BNTH = self.backend(
            q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), mask
        )
        out_BTD: Tensor = self.wo(out_BNTH.transpose(1, 2).flatten(2))
        return out_BTD

    def apply_rotary_emb(self, x_BTNH: Tensor, rope_BT1P: Tensor) -> Tensor:
        """Apply RoPE to queries or keys, and normalize them if the config says so."""
        x_BTNH = apply_rotary_emb_complex(x_BTNH, rope_BT1P)
        if self.qk_norm_eps is None:
            return x_BTNH
        return F.rms_norm(x_BTNH.float(), (self.head_dim,), eps=self.qk_norm_eps).type_as(x_BTNH)

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights: wo, which adds to the residual stream, with `residual_std`."""
        for linear in (self.wq, self.wk, self.wv):
            truncated_normal_(
                linear.weight, std=init.linear_std, bound=init.truncation, generator=generator
            )
        truncated_normal_(
            self.wo.weight, std=residual_std, bound=init.truncation, generator=generator
        )


class Llama4(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: Llama4Config

    def __init__(self, config: Llama4Config, *, seq_len: int) -> None:
        layers = [self.build_layer(config, index) for index in range(unwrap_auto(config.n_layers))]
        super().__init__(config, layers, seq_len=seq_len)

    @staticmethod
    def build_layer(config: Llama4Config, index: int) -> DecoderLayer:
        """Build a layer of attention, and of experts in every n-th layer, SwiGLU in others."""
        attention, dim = Llama4Attention(config, layer=index), unwrap_auto(config.dim)
        if config.has_experts(index):
            return DecoderLayer(config, attention=attention, moe=Moe(config.moe, dim=dim))
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=FeedForward(dim=dim, hidden_dim=config.dense_hidden_dim()),
        )

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the RoPE cache [T, S], complex, with only a shape on the meta device.

        It contains the rotation of each pair, and the scale of queries in layers without RoPE. They
        share one cache, since both are selected by position, and no complex number is cast to
        another precision.
        """
        config, head_dim = self.config, unwrap_auto(self.config.head_dim)
        if device.type == "meta":
            return torch.empty(
                self.seq_len, head_dim // 2 + 1, dtype=torch.complex64, device=device
            )
        table_TP = build_complex_rope_cache(
            config.rope, head_dim=head_dim, seq_len=self.seq_len, device=device
        )
        return torch.cat(
            [
                table_TP,
                compute_temperature_scales(config, self.seq_len, device=device).unsqueeze(1),
            ],
            dim=1,
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the RoPE cache, complex [1 or B, T, 1, S]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)


def compute_temperature_scales(
    config: Llama4Config, seq_len: int, *, device: torch.device
) -> Tensor:
    """Return the scale of queries at each position [T].

    It grows with the logarithm of the number of visible tokens divided by floor_scale.
    """
    visible_T = torch.arange(1, seq_len + 1, dtype=torch.float32, device=device)
    attn_scale, floor_scale = unwrap_auto(config.attn_scale), unwrap_auto(config.floor_scale)
    return 1 + attn_scale * torch.log1p((visible_T / floor_scale).floor())
