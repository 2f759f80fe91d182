"""Attention whose keys and values are compressed.

Shapes: B batch, T tokens of a row, D model width, N heads, H width of a query or key, R the part of it that RoPE turns, C width of
compressed keys and values, V width of a value.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.shared.attention import SdpaAttention
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.grouped_query_attention import Turn
from titanrun.models.shared.initialization import truncated_normal_
from titanrun.models.shared.latent_config import LatentSizes, query_width


class LatentAttention(nn.Module):
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1): the keys and values of all heads are made from one
    short vector a token, and their position from one key that the heads share. Queries may be compressed too.

    Args:
        latent: the sizes.
        dim: of the stream.
        n_heads: of queries, and so of keys and values.
        norm_eps: of the norms of compressed queries, and of compressed keys and values.
        backend: computes it.
        turn: gives its part of queries and keys [B, T, N, R] their position, from rows of the RoPE table; None: they have none.
    """

    def __init__(
        self,
        latent: LatentSizes,
        *,
        dim: int,
        n_heads: int,
        norm_eps: float,
        backend: SdpaAttention,
        turn: Turn | None,
    ) -> None:
        super().__init__()
        self.query_split = [latent.qk_nope_head_dim, latent.qk_rope_head_dim]
        self.latent_split = [latent.kv_lora_rank, latent.qk_rope_head_dim]
        self.key_value_split = [latent.qk_nope_head_dim, latent.v_head_dim]
        queries, rank = n_heads * query_width(latent), latent.q_lora_rank
        if rank is None:
            self.wq = nn.Linear(dim, queries, bias=False)
        else:
            self.wq_a = nn.Linear(dim, rank, bias=False)
            self.q_norm = nn.RMSNorm(rank, eps=norm_eps)
            self.wq_b = nn.Linear(rank, queries, bias=False)
        self.compresses_queries = rank is not None
        self.wkv_a = nn.Linear(dim, sum(self.latent_split), bias=False)
        self.kv_norm = nn.RMSNorm(latent.kv_lora_rank, eps=norm_eps)
        self.wkv_b = nn.Linear(latent.kv_lora_rank, n_heads * sum(self.key_value_split), bias=False)
        self.wo = nn.Linear(n_heads * latent.v_head_dim, dim, bias=False)
        self.turn = turn
        self.backend = backend

    def forward(self, x_BTD: Tensor, rope: Tensor, seen: Any) -> Tensor:
        q_BTNH, k_BTNH, v_BTNV = self.queries(x_BTD, rope), *self.keys_and_values(x_BTD, rope)
        out_BNTV = self.backend(
            q_BTNH.transpose(1, 2), k_BTNH.transpose(1, 2), v_BTNV.transpose(1, 2), seen
        )
        return self.wo(out_BNTV.transpose(1, 2).flatten(2))

    def queries(self, x_BTD: Tensor, rope: Tensor) -> Tensor:
        """Queries [B, T, N, H], the end of each turned."""
        q_BTX = (
            self.wq_b(self.q_norm(self.wq_a(x_BTD))) if self.compresses_queries else self.wq(x_BTD)
        )
        still, turned = q_BTX.unflatten(-1, (-1, sum(self.query_split))).split(
            self.query_split, dim=-1
        )
        return torch.cat([still, self.turned(turned, rope)], dim=-1)

    def keys_and_values(self, x_BTD: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [B, T, N, H], the end of each turned and the same for all heads, and values [B, T, N, V]."""
        latent_BTC, shared_BTR = self.wkv_a(x_BTD).split(self.latent_split, dim=-1)
        made = self.wkv_b(self.kv_norm(latent_BTC)).unflatten(-1, (-1, sum(self.key_value_split)))
        still, v_BTNV = made.split(self.key_value_split, dim=-1)
        turned = self.turned(shared_BTR.unsqueeze(2), rope).expand(-1, -1, still.size(2), -1)
        return torch.cat([still, turned], dim=-1), v_BTNV

    def turned(self, x_BTNR: Tensor, rope: Tensor) -> Tensor:
        """With its position."""
        return x_BTNR if self.turn is None else self.turn(x_BTNR, rope)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; wo, which adds to the residual stream, at `into_stream_std`."""
        norms = [self.kv_norm, *([self.q_norm] if self.compresses_queries else [])]
        linears = [
            *([self.wq_a, self.wq_b] if self.compresses_queries else [self.wq]),
            self.wkv_a,
            self.wkv_b,
        ]
        for norm in norms:
            norm.reset_parameters()
        for linear in linears:
            truncated_normal_(
                linear.weight, std=init.linear_std, bound=init.truncation, generator=generator
            )
        truncated_normal_(
            self.wo.weight, std=into_stream_std, bound=init.truncation, generator=generator
        )
