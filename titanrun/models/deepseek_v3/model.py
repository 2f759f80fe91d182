"""DeepSeek-V3 (https://arxiv.org/abs/2412.19437), a pre-norm decoder whose keys and values are compressed, with experts.

Shapes: B batch, T tokens of a row, D model width, N heads, H width of a query or key, R the part of it that RoPE turns, P = R / 2 pairs,
C width of compressed keys and values, V width of a value, or of logits the vocabulary, K further tokens.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.deepseek_v3.config import DeepseekV3Config
from titanrun.models.deepseek_v3.further_layer import FurtherLayer
from titanrun.models.shared.attention import attention_backend
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.decoder import Decoder
from titanrun.models.shared.decoder_layer import DecoderLayer
from titanrun.models.shared.feed_forward import FeedForward
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.moe import Moe
from titanrun.models.shared.rope import rope_rows, rope_table, rotate


class LatentAttention(nn.Module):
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1): the keys and values of all heads are made from one
    short vector a token, and their position from one key that the heads share. Queries may be compressed too."""

    def __init__(self, config: DeepseekV3Config) -> None:
        super().__init__()
        self.query_split = [config.qk_nope_head_dim, config.qk_rope_head_dim]
        self.latent_split = [config.kv_lora_rank, config.qk_rope_head_dim]
        self.key_value_split = [config.qk_nope_head_dim, config.v_head_dim]
        queries, rank, eps = config.n_heads * config.query_width(), config.q_lora_rank, config.latent_norm_eps
        if rank is None:
            self.wq = nn.Linear(config.dim, queries, bias=False)
        else:
            self.wq_a = nn.Linear(config.dim, rank, bias=False)
            self.q_norm = nn.RMSNorm(rank, eps=eps)
            self.wq_b = nn.Linear(rank, queries, bias=False)
        self.compresses_queries = rank is not None
        self.wkv_a = nn.Linear(config.dim, sum(self.latent_split), bias=False)
        self.kv_norm = nn.RMSNorm(config.kv_lora_rank, eps=eps)
        self.wkv_b = nn.Linear(config.kv_lora_rank, config.n_heads * sum(self.key_value_split), bias=False)
        self.wo = nn.Linear(config.n_heads * config.v_head_dim, config.dim, bias=False)
        self.backend = attention_backend(config.attention, scale=config.score_scale())

    def forward(self, x_BTD: Tensor, rope_BT1P: Tensor, seen: Any) -> Tensor:
        q_BTNH, k_BTNH, v_BTNV = self.queries(x_BTD, rope_BT1P), *self.keys_and_values(x_BTD, rope_BT1P)
        out_BNTV = self.backend(q_BTNH.transpose(1, 2), k_BTNH.transpose(1, 2), v_BTNV.transpose(1, 2), seen)
        return self.wo(out_BNTV.transpose(1, 2).flatten(2))

    def queries(self, x_BTD: Tensor, rope_BT1P: Tensor) -> Tensor:
        """Queries [B, T, N, H], the end of each turned."""
        q_BTX = self.wq_b(self.q_norm(self.wq_a(x_BTD))) if self.compresses_queries else self.wq(x_BTD)
        still, turned = q_BTX.unflatten(-1, (-1, sum(self.query_split))).split(self.query_split, dim=-1)
        return torch.cat([still, rotate(turned, rope_BT1P)], dim=-1)

    def keys_and_values(self, x_BTD: Tensor, rope_BT1P: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, T, N, H], the end of each turned and the same for all heads, and values [B, T, N, V]."""
        latent_BTC, shared_BTR = self.wkv_a(x_BTD).split(self.latent_split, dim=-1)
        made = self.wkv_b(self.kv_norm(latent_BTC)).unflatten(-1, (-1, sum(self.key_value_split)))
        still, v_BTNV = made.split(self.key_value_split, dim=-1)
        turned = rotate(shared_BTR.unsqueeze(2), rope_BT1P).expand(-1, -1, still.size(2), -1)
        return torch.cat([still, turned], dim=-1), v_BTNV

    def init_weights(self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None) -> None:
        """Draw the weights; wo, which adds to the residual stream, at `into_stream_std`."""
        norms = [self.kv_norm, *([self.q_norm] if self.compresses_queries else [])]
        linears = [*([self.wq_a, self.wq_b] if self.compresses_queries else [self.wq]), self.wkv_a, self.wkv_b]
        for norm in norms:
            norm.reset_parameters()
        for linear in linears:
            truncated_normal_(linear.weight, std=init.linear_std, bound=init.truncation, generator=generator)
        truncated_normal_(self.wo.weight, std=into_stream_std, bound=init.truncation, generator=generator)


class DeepseekV3(Decoder):
    """Token ids to logits of the next token."""

    config: DeepseekV3Config

    def __init__(self, config: DeepseekV3Config, *, seq_len: int) -> None:
        super().__init__(config, [self.layer(config, index) for index in range(config.layer_count())], seq_len=seq_len)

    @staticmethod
    def layer(config: DeepseekV3Config, index: int) -> DecoderLayer:
        """Attention, then SwiGLU in the first layers, experts in all others; behind the last one those that predict further tokens."""
        kind = DecoderLayer if index < config.n_layers else FurtherLayer
        if config.has_experts(index):
            return kind(config, attention=LatentAttention(config), moe=Moe(config.moe, dim=config.dim))
        feed_forward = FeedForward(dim=config.dim, hidden_dim=config.dense_width())
        return kind(config, attention=LatentAttention(config), feed_forward=feed_forward)

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
        h_BTD, *embedded = self.tok_embeddings(torch.cat([tokens_BT, *further_KBT])).chunk(1 + len(further_KBT))
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
