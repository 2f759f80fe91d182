"""DeepSeek-V3 (https://arxiv.org/abs/2412.19437): latent attention and experts.

Shapes: B batch, T tokens of a sequence, D model width, P RoPE pairs, V vocabulary, K tokens of
multi-token prediction.
"""

import torch
from torch import Tensor, nn

from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.mtp_layer import MTPLayer
from titanrun.models.shared.attention import build_attention_backend
from titanrun.models.shared.config import unwrap_auto
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.latent_attention import LatentAttention
from titanrun.models.shared.latent_config import compute_attention_scale
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import (
    apply_rotary_emb_complex,
    build_complex_rope_cache,
    select_rope_positions,
)


class DeepseekV3(Decoder):
    """Decoder from token ids to logits of the next token."""

    config: DeepseekV3Config

    def __init__(self, config: DeepseekV3Config, *, seq_len: int) -> None:
        super().__init__(
            config,
            [self.build_layer(config, index) for index in range(config.layer_count())],
            seq_len=seq_len,
        )

    @staticmethod
    def build_layer(config: DeepseekV3Config, index: int) -> DecoderLayer:
        """Build a layer: dense first, then with experts, then for multi-token prediction."""
        kind, dim = (
            DecoderLayer if index < unwrap_auto(config.n_layers) else MTPLayer,
            unwrap_auto(config.dim),
        )
        if config.has_experts(index):
            return kind(
                config, attention=build_latent_attention(config), moe=Moe(config.moe, dim=dim)
            )
        feed_forward = FeedForward(dim=dim, hidden_dim=config.dense_hidden_dim())
        return kind(config, attention=build_latent_attention(config), feed_forward=feed_forward)

    def forward(
        self,
        tokens_BT: Tensor,
        positions_BT: Tensor | None = None,
        documents_BT: Tensor | None = None,
        document_starts_BM: Tensor | None = None,
        mtp_tokens_KBT: Tensor | None = None,
    ) -> Tensor:
        """Return the logits [B, T, V] of the next token.

        With `mtp_tokens_KBT`, the tokens 1 to K positions later, return logits [(1 + K) B, T, V]:
        those of the next token, followed by those of the later tokens, one depth after the other.
        """
        if mtp_tokens_KBT is None:
            return super().forward(tokens_BT, positions_BT, documents_BT, document_starts_BM)
        assert self.tok_embeddings is not None, "a rule rejects pipelines"
        get_layer_inputs = self.build_layer_inputs(
            tokens_BT, positions_BT, documents_BT, document_starts_BM
        )
        # embedding and head run once for all depths, so that FSDP gathers their weights once
        h_BTD, *embedded = self.tok_embeddings(torch.cat([tokens_BT, *mtp_tokens_KBT])).chunk(
            1 + len(mtp_tokens_KBT)
        )
        normed = [self.forward_layers(h_BTD, get_layer_inputs)]
        for layer, embedded_BTD in zip(self.mtp_layers(), embedded, strict=True):
            normed.append(layer(normed[-1], embedded_BTD, *get_layer_inputs(layer)))
        return self.compute_logits(torch.cat(normed))

    def main_layers(self) -> list[nn.Module]:
        """Return the layers that predict the next token."""
        return [layer for layer in self.layers.values() if not isinstance(layer, MTPLayer)]

    def mtp_layers(self) -> list[nn.Module]:
        """Return the multi-token prediction layers, one per later token."""
        return [layer for layer in self.layers.values() if isinstance(layer, MTPLayer)]

    def build_rope_cache(self, device: torch.device) -> Tensor:
        """Build the RoPE cache [T, P] of the rotated part, with only a shape on the meta device."""
        turned = unwrap_auto(self.config.qk_rope_head_dim)
        if device.type == "meta":
            return torch.empty(self.seq_len, turned // 2, dtype=torch.complex64, device=device)
        return build_complex_rope_cache(
            self.config.rope, head_dim=turned, seq_len=self.seq_len, device=device
        )

    def select_rope_positions(self, seq_len: int, positions_BT: Tensor | None) -> Tensor:
        """Return rows of the RoPE cache, complex [1 or B, T, 1, P]."""
        return select_rope_positions(self.rope_table, seq_len, positions_BT)


def build_latent_attention(config: DeepseekV3Config) -> LatentAttention:
    """Build the attention of a layer."""
    scale = compute_attention_scale(config, unwrap_auto(config.rope.scaling))
    return LatentAttention(
        config,
        dim=unwrap_auto(config.dim),
        n_heads=unwrap_auto(config.n_heads),
        norm_eps=unwrap_auto(config.latent_norm_eps),
        backend=build_attention_backend(config.attention, scale=scale),
        rotary_fn=apply_rotary_emb_complex,
    )
