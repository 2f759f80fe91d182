"""Multi-head latent attention, whose keys and values are compressed.

Shapes: B batch, T tokens of a sequence, D model width, N heads, H width of a query or key, R width
of its part with RoPE, C width of compressed keys and values, V width of a value.
"""

from typing import Any

import torch
from torch import Generator, Tensor, nn

from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.grouped_query_attention import RotaryFn
from titanrun.models.shared.latent_config import LatentSizes, get_query_head_dim
from titanrun.models.shared.sdpa_attention import SdpaAttention
from titanrun.models.shared.weight_init import truncated_normal_


class LatentAttention(nn.Module):
    """Multi-head latent attention (https://arxiv.org/abs/2405.04434, section 2.1).

    The keys and values of all heads are projected from one short vector per token, and their
    position comes from one key that the heads share. Queries may be compressed too.

    Args:
        latent: the sizes.
        dim: width of the stream.
        n_heads: number of query heads, and of key and value heads.
        norm_eps: epsilon of the norms of compressed queries, and of compressed keys and values.
        backend: the attention back end.
        rotary_fn: applies rows of the RoPE cache to the part [B, T, N, R] of queries and keys.
            None: no RoPE.
    """

    def __init__(
        self,
        latent: LatentSizes,
        *,
        dim: int,
        n_heads: int,
        norm_eps: float,
        backend: SdpaAttention,
        rotary_fn: RotaryFn | None,
    ) -> None:
        super().__init__()
        rank, value = unwrap_auto(latent.kv_lora_rank), unwrap_auto(latent.v_head_dim)
        nope, rotated = unwrap_auto(latent.qk_nope_head_dim), unwrap_auto(latent.qk_rope_head_dim)
        self.query_split = [nope, rotated]
        self.latent_split = [rank, rotated]
        self.key_value_split = [nope, value]
        self.add_query_projections(latent, dim=dim, n_heads=n_heads, norm_eps=norm_eps)
        self.wkv_a = nn.Linear(dim, sum(self.latent_split), bias=False)
        self.kv_norm = nn.RMSNorm(rank, eps=norm_eps)
        self.wkv_b = nn.Linear(rank, n_heads * sum(self.key_value_split), bias=False)
        self.wo = nn.Linear(n_heads * value, dim, bias=False)
        self.rotary_fn = rotary_fn
        self.backend = backend

    def add_query_projections(
        self, latent: LatentSizes, *, dim: int, n_heads: int, norm_eps: float
    ) -> None:
        """Create the projection to queries, in one step or two."""
        queries, rank = n_heads * get_query_head_dim(latent), unwrap_auto(latent.q_lora_rank)
        if rank is None:
            self.wq = nn.Linear(dim, queries, bias=False)
        else:
            self.wq_a = nn.Linear(dim, rank, bias=False)
            self.q_norm = nn.RMSNorm(rank, eps=norm_eps)
            self.wq_b = nn.Linear(rank, queries, bias=False)
        self.compresses_queries = rank is not None

    def forward(self, x_BTD: Tensor, rope: Tensor, mask: Any) -> Tensor:
        """Return the attention output [B, T, D]."""
        q_BTNH, k_BTNH, v_BTNV = (
            self.compute_queries(x_BTD, rope),
            *self.compute_keys_and_values(x_BTD, rope),
        )
        # a norm may return fp32, but kernels need one dtype
        q_BTNH, k_BTNH = q_BTNH.type_as(v_BTNV), k_BTNH.type_as(v_BTNV)
        out_BNTV = self.backend(
            q_BTNH.transpose(1, 2), k_BTNH.transpose(1, 2), v_BTNV.transpose(1, 2), mask
        )
        out_BTD: Tensor = self.wo(out_BNTV.transpose(1, 2).flatten(2))
        return out_BTD

    def compute_queries(self, x_BTD: Tensor, rope: Tensor) -> Tensor:
        """Return queries [B, T, N, H], whose last part has RoPE."""
        q_BTX = (
            self.wq_b(self.q_norm(self.wq_a(x_BTD))) if self.compresses_queries else self.wq(x_BTD)
        )
        nope, rotated = q_BTX.unflatten(-1, (-1, sum(self.query_split))).split(
            self.query_split, dim=-1
        )
        return torch.cat([nope, self.apply_rotary_emb(rotated, rope)], dim=-1)

    def compute_keys_and_values(self, x_BTD: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [B, T, N, H] and values [B, T, N, V].

        The last part of the keys has RoPE and is the same for all heads.
        """
        latent_BTC, shared_BTR = self.wkv_a(x_BTD).split(self.latent_split, dim=-1)
        projected = self.wkv_b(self.kv_norm(latent_BTC)).unflatten(
            -1, (-1, sum(self.key_value_split))
        )
        nope, v_BTNV = projected.split(self.key_value_split, dim=-1)
        rotated = self.apply_rotary_emb(shared_BTR.unsqueeze(2), rope).expand(
            -1, -1, nope.size(2), -1
        )
        return torch.cat([nope, rotated], dim=-1), v_BTNV

    def apply_rotary_emb(self, x_BTNR: Tensor, rope: Tensor) -> Tensor:
        """Apply RoPE, if there is any."""
        return x_BTNR if self.rotary_fn is None else self.rotary_fn(x_BTNR, rope)

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights: wo, which adds to the residual stream, with `residual_std`."""
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
            self.wo.weight, std=residual_std, bound=init.truncation, generator=generator
        )
