"""DeepSeek-V3 (https://arxiv.org/abs/2412.19437), a pre-norm decoder whose keys and values are compressed, with experts.

Shapes: B batch, T tokens of a row, D model width, P RoPE pairs, V the vocabulary, K further tokens.
"""

import torch
from torch import Tensor, nn

from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.further_layer import FurtherLayer
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.latent_attention import LatentAttention
from titanrun.models.shared.latent_config import score_scale
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import rope_rows, rope_table, rotate


class DeepseekV3(Decoder):
    """Token ids to logits of the next token."""

    config: DeepseekV3Config

    def __init__(self, config: DeepseekV3Config, *, seq_len: int) -> None:
        super().__init__(
            config,
            [self.layer(config, index) for index in range(config.layer_count())],
            seq_len=seq_len,
        )

    @staticmethod
    def layer(config: DeepseekV3Config, index: int) -> DecoderLayer:
        """Attention, then SwiGLU in the first layers, experts in all others; behind the last one those that predict further tokens."""
        kind = DecoderLayer if index < config.n_layers else FurtherLayer
        if config.has_experts(index):
            return kind(config, attention=attention_of(config), moe=Moe(config.moe, dim=config.dim))
        feed_forward = FeedForward(dim=config.dim, hidden_dim=config.dense_width())
        return kind(config, attention=attention_of(config), feed_forward=feed_forward)

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
        further_KBT: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of the next token. With `further_KBT`, the tokens 1 to K places on, logits [(1 + K) B, T, V]: below those of
        the next token those of the tokens behind it, one depth after the other."""
        if further_KBT is None:
            return super().forward(tokens_BT, positions_BT, documents_BT)
        assert self.tok_embeddings is not None, "a rule refuses pipelines"
        told = self.telling(tokens_BT, positions_BT, documents_BT)
        # embedding and head each run once for all depths, so that whoever shards their weights gathers them once
        h_BTD, *embedded = self.tok_embeddings(torch.cat([tokens_BT, *further_KBT])).chunk(
            1 + len(further_KBT)
        )
        normed = [self.stream(h_BTD, told)]
        for layer, embedded_BTD in zip(self.further_layers(), embedded, strict=True):
            normed.append(layer(normed[-1], embedded_BTD, *told(layer)))
        return self.logits(torch.cat(normed))

    def trunk(self) -> list[nn.Module]:
        """The layers that the next token is predicted with."""
        return [layer for layer in self.layers.values() if not isinstance(layer, FurtherLayer)]

    def further_layers(self) -> list[nn.Module]:
        """Those that predict the tokens behind it, one each."""
        return [layer for layer in self.layers.values() if isinstance(layer, FurtherLayer)]

    def new_rope_table(self, device: torch.device) -> Tensor:
        """The RoPE table [T, P] of the part that is turned; on the meta device only its shape."""
        turned = self.config.qk_rope_head_dim
        if device.type == "meta":
            return torch.empty(self.seq_len, turned // 2, dtype=torch.complex64, device=device)
        return rope_table(self.config.rope, head_dim=turned, seq_len=self.seq_len, device=device)

    def rope_rows(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Rows of complex numbers [1 or B, T, 1, P]."""
        return rope_rows(self.rope_table, seq_len, positions_BT)


def attention_of(config: DeepseekV3Config) -> LatentAttention:
    """The attention of a layer."""
    return LatentAttention(
        config,
        dim=config.dim,
        n_heads=config.n_heads,
        norm_eps=config.latent_norm_eps,
        backend=attention_backend(config.attention, scale=score_scale(config, config.rope.scaling)),
        turn=rotate,
    )
