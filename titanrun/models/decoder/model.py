"""Custom decoder: a pre-norm decoder of parts of the other families.

Shapes: B batch, T tokens of a sequence, D model width, H width of the part of a head that RoPE
rotates, P = H / 2 pairs, V vocabulary.
"""

from functools import partial

import torch
from torch import Tensor, nn

from titanrun.models.decoder.config import CustomDecoderConfig
from titanrun.models.gpt_oss.clamped_experts import ClampedExperts
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer, NormFactory
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention, RotaryFn
from titanrun.models.shared.latent_attention import LatentAttention
from titanrun.models.shared.latent_config import compute_attention_scale
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import (
    apply_rotary_emb_complex,
    apply_rotary_emb_cos_sin,
    build_complex_rope_cache,
    build_cos_sin_rope_cache,
    select_rope_positions,
)
from titanrun.models.shared.sdpa_attention import apply_soft_cap

NORMS: dict[str, NormFactory] = {"rms": nn.RMSNorm, "layer": partial(nn.LayerNorm, bias=False)}
ROTARY_FNS: dict[str, RotaryFn] = {
    "neighbours": apply_rotary_emb_complex,
    "halves": apply_rotary_emb_cos_sin,
}


class CustomDecoder(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: CustomDecoderConfig

    def __init__(self, config: CustomDecoderConfig, *, seq_len: int) -> None:
        layers = [self.build_layer(config, index) for index in range(unwrap_auto(config.n_layers))]
        super().__init__(
            config, layers, seq_len=seq_len, norm_factory=NORMS[unwrap_auto(config.norm)]
        )

    @staticmethod
    def build_layer(config: CustomDecoderConfig, index: int) -> DecoderLayer:
        """Build the layer with that index."""
        attention, with_experts = build_custom_attention(config, index), config.has_experts(index)
        return DecoderLayer(
            config,
            attention=attention,
            feed_forward=None if with_experts else build_custom_feed_forward(config),
            moe=build_custom_moe(config) if with_experts else None,
            norm_factory=NORMS[unwrap_auto(config.norm)],
            has_post_norms=unwrap_auto(config.post_norms),
        )

    def compute_logits(self, normed_BTD: Tensor) -> Tensor:
        """Return the logits [B, T, V], soft-capped if the config has a cap."""
        return apply_soft_cap(
            super().compute_logits(normed_BTD), unwrap_auto(self.config.logit_soft_cap)
        )

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the RoPE cache, with only a shape on the meta device.

        It is complex [T, P] for neighbors, cosines and sines [T, 2 H] for halves.
        """
        rope, head_dim = self.config.rope, self.config.rope_head_dim()
        rotates_neighbors = rope.pairs == "neighbours"
        if device.type == "meta":
            width, dtype = (
                (head_dim // 2, torch.complex64)
                if rotates_neighbors
                else (2 * head_dim, torch.float32)
            )
            return torch.empty(self.seq_len, width, dtype=dtype, device=device)
        if rotates_neighbors:
            return build_complex_rope_cache(
                rope, head_dim=head_dim, seq_len=self.seq_len, device=device
            )
        return build_cos_sin_rope_cache(
            unwrap_auto(rope.theta),
            head_dim=head_dim,
            seq_len=self.seq_len,
            scaling=unwrap_auto(rope.scaling),
            device=device,
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the RoPE cache, [1 or B, T, 1, P or 2 H]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)


def build_custom_attention(
    config: CustomDecoderConfig, layer: int
) -> GroupedQueryAttention | LatentAttention:
    """Build the attention of a layer."""
    attention, latent = config.attention, unwrap_auto(config.attention.latent)
    scale = (
        None
        if latent is None
        else compute_attention_scale(latent, unwrap_auto(config.rope.scaling))
    )
    backend = build_attention_backend(
        attention,
        window=config.get_window(layer),
        scale=scale,
        soft_cap=unwrap_auto(attention.soft_cap),
    )
    rotary_fn = ROTARY_FNS[unwrap_auto(config.rope.pairs)] if config.uses_rope(layer) else None
    if latent is not None:
        return LatentAttention(
            latent,
            dim=unwrap_auto(config.dim),
            n_heads=unwrap_auto(config.n_heads),
            norm_eps=unwrap_auto(latent.norm_eps),
            backend=backend,
            rotary_fn=rotary_fn,
        )
    return GroupedQueryAttention(
        config,
        backend=backend,
        rotary_fn=rotary_fn,
        qk_norm=unwrap_auto(attention.qk_norm),
        bias=attention.bias != "none",
        output_bias=attention.bias == "all",
        has_sinks=unwrap_auto(attention.sinks),
    )


def build_custom_feed_forward(config: CustomDecoderConfig) -> FeedForward:
    """Build the SwiGLU of one layer."""
    return FeedForward(
        dim=unwrap_auto(config.dim),
        hidden_dim=config.dense_hidden_dim(),
        bias=unwrap_auto(config.feed_forward.bias),
    )


def build_custom_moe(config: CustomDecoderConfig) -> Moe:
    """Build the mixture of experts of one layer."""
    moe, dim = unwrap_auto(config.moe), unwrap_auto(config.dim)
    assert moe is not None, "called for layers with experts only"
    return Moe(
        moe,
        dim=dim,
        experts=None if moe.swiglu_limit is None else ClampedExperts(moe, dim=dim),
    )
