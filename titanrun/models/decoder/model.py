"""A pre-norm decoder put together from the parts of the other families, as its config says.

Shapes: B batch, T tokens of a row, D model width, H width of what RoPE turns of a head, P = H / 2 pairs, V vocabulary.
"""

from functools import partial

import torch
from torch import Tensor, nn

from titanrun.models.decoder.config import IngredientsConfig
from titanrun.models.gpt_oss.experts import ClampedExperts
from titanrun.models.shared.attention import attention_backend, soft_capped
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.grouped_query_attention import GroupedQueryAttention
from titanrun.models.shared.latent_attention import LatentAttention
from titanrun.models.shared.latent_config import score_scale
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import cos_sin_table, rope_rows, rope_table, rotate, rotate_halves

NORMS = {"rms": nn.RMSNorm, "layer": partial(nn.LayerNorm, bias=False)}
TURNS = {"neighbours": rotate, "halves": rotate_halves}


class ComposedDecoder(Decoder):
    """Token ids to logits of the next token."""

    config: IngredientsConfig

    def __init__(self, config: IngredientsConfig, *, seq_len: int) -> None:
        layers = [self.layer(config, index) for index in range(config.n_layers)]
        super().__init__(config, layers, seq_len=seq_len, new_norm=NORMS[config.norm])

    @staticmethod
    def layer(config: IngredientsConfig, index: int) -> DecoderLayer:
        """The layer of that number."""
        attention, norms = (
            attention_of(config, index),
            {"new_norm": NORMS[config.norm], "post_norms": config.post_norms},
        )
        if config.has_experts(index):
            return DecoderLayer(config, attention=attention, moe=experts_of(config), **norms)
        feed_forward = FeedForward(
            dim=config.dim, hidden_dim=config.dense_width(), bias=config.feed_forward.bias
        )
        return DecoderLayer(config, attention=attention, feed_forward=feed_forward, **norms)

    def logits(self, normed_BTD: Tensor) -> Tensor:
        return soft_capped(super().logits(normed_BTD), self.config.logit_soft_cap)

    def new_rope_table(self, device: torch.device) -> Tensor:
        """Complex numbers [T, P] that turn neighbours, or cosines and sines [T, 2 H] for halves; on the meta device only the shape."""
        rope, head_dim = self.config.rope, self.config.turned_width()
        turns_neighbours = rope.pairs == "neighbours"
        if device.type == "meta":
            width, dtype = (
                (head_dim // 2, torch.complex64)
                if turns_neighbours
                else (2 * head_dim, torch.float32)
            )
            return torch.empty(self.seq_len, width, dtype=dtype, device=device)
        if turns_neighbours:
            return rope_table(rope, head_dim=head_dim, seq_len=self.seq_len, device=device)
        return cos_sin_table(
            rope.theta, head_dim=head_dim, seq_len=self.seq_len, scaling=rope.scaling, device=device
        )

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of the table [1 or B, T, 1, P or 2 H]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)


def attention_of(config: IngredientsConfig, layer: int) -> GroupedQueryAttention | LatentAttention:
    """The attention of a layer."""
    said, latent = config.attention, config.attention.latent
    scale = None if latent is None else score_scale(latent, config.rope.scaling)
    backend = attention_backend(
        said, window=config.window(layer), scale=scale, soft_cap=said.soft_cap
    )
    turn = TURNS[config.rope.pairs] if config.uses_rope(layer) else None
    if latent is not None:
        return LatentAttention(
            latent,
            dim=config.dim,
            n_heads=config.n_heads,
            norm_eps=latent.norm_eps,
            backend=backend,
            turn=turn,
        )
    return GroupedQueryAttention(
        config,
        backend=backend,
        turn=turn,
        qk_norm=said.qk_norm,
        bias=said.bias != "none",
        output_bias=said.bias == "all",
        sinks=said.sinks,
    )


def experts_of(config: IngredientsConfig) -> Moe:
    """The mixture of experts of one layer."""
    moe = config.moe
    return Moe(
        moe,
        dim=config.dim,
        experts=None if moe.swiglu_limit is None else ClampedExperts(moe, dim=config.dim),
    )
