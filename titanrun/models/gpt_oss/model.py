"""gpt-oss (https://arxiv.org/abs/2508.10925): attention sinks, windows, and experts.

It is a pre-norm decoder with an attention window in every second layer.

Shapes: B batch, T tokens of a sequence, H head width.
"""

import torch
from torch import Generator, Tensor

from titanrun.models.gpt_oss.clamped_experts import ClampedExperts
from titanrun.models.gpt_oss.config import GptOssConfig
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import (
    apply_rotary_emb_cos_sin,
    build_cos_sin_rope_cache,
    select_rope_positions,
)
from titanrun.models.shared.weight_init import truncated_normal_


class GptOssAttention(GroupedQueryAttention):
    """Masked self-attention with biases and sinks, in some layers with a window."""

    def __init__(self, config: GptOssConfig, *, window: int | None) -> None:
        backend = build_attention_backend(config.attention, window=window)
        super().__init__(
            config,
            backend=backend,
            rotary_fn=apply_rotary_emb_cos_sin,
            bias=True,
            output_bias=True,
            has_sinks=True,
        )

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize weights, biases and sinks with `residual_std`."""
        for weight in self.parameters():
            truncated_normal_(weight, std=residual_std, bound=init.truncation, generator=generator)


class GptOss(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: GptOssConfig

    def __init__(self, config: GptOssConfig, *, seq_len: int) -> None:
        layers = [self.build_layer(config, index) for index in range(unwrap_auto(config.n_layers))]
        super().__init__(config, layers, seq_len=seq_len)

    @staticmethod
    def build_layer(config: GptOssConfig, index: int) -> DecoderLayer:
        """Build the layer with that index."""
        sizes, dim = unwrap_auto(config.moe), unwrap_auto(config.dim)
        moe = Moe(sizes, dim=dim, experts=ClampedExperts(sizes, dim=dim))
        return DecoderLayer(
            config, attention=GptOssAttention(config, window=config.get_window(index)), moe=moe
        )

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the cache of cosines and sines [T, 2 H], with only a shape on the meta device."""
        rope, head_dim = self.config.rope, unwrap_auto(self.config.head_dim)
        if device.type == "meta":
            return torch.empty(self.seq_len, 2 * head_dim, dtype=torch.float32, device=device)
        return build_cos_sin_rope_cache(
            unwrap_auto(rope.theta),
            head_dim=head_dim,
            seq_len=self.seq_len,
            scaling=unwrap_auto(rope.scaling),
            device=device,
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the cache of cosines and sines, [1 or B, T, 1, 2 H]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)
