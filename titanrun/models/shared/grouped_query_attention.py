"""Attention in which groups of query heads share a key and value head (https://arxiv.org/abs/2305.13245), with what families add to it.

Shapes: B batch, T tokens of a row, D model width, N query heads, K key and value heads, H head width.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn

from titanrun.distributed.shards import own_part
from titanrun.models.shared.attention import SdpaAttention
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.initialization import truncated_normal_

Turn = Callable[[Tensor, Tensor], Tensor]


class HeadSizes(Protocol):
    """What attention reads of a family's config."""

    dim: Any
    n_heads: Any
    n_kv_heads: Any
    head_dim: Any
    norm_eps: Any


class GroupedQueryAttention(nn.Module):
    """Masked self-attention.

    Args:
        config: the sizes.
        backend: computes it.
        turn: gives queries or keys [B, T, N, H] their position, from rows of the RoPE table; None: they have none.
        qk_norm: whether queries and keys are normalised head by head.
        bias: whether the projections to queries, keys and values have biases.
        output_bias: whether the projection into the stream has one.
        sinks: whether each query head has the score of a key of no token, whose value is zero.
    """

    def __init__(
        self,
        config: HeadSizes,
        *,
        backend: SdpaAttention,
        turn: Turn | None,
        qk_norm: bool = False,
        bias: bool = False,
        output_bias: bool = False,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        dim, width, kv_width = (
            config.dim,
            config.n_heads * config.head_dim,
            config.n_kv_heads * config.head_dim,
        )
        self.head_dim = config.head_dim
        self.turn = turn
        self.normalises = qk_norm
        self.sinks = nn.Parameter(torch.empty(config.n_heads)) if sinks else None
        self.wq = nn.Linear(dim, width, bias=bias)
        self.wk = nn.Linear(dim, kv_width, bias=bias)
        self.wv = nn.Linear(dim, kv_width, bias=bias)
        self.wo = nn.Linear(width, dim, bias=output_bias)
        if qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.backend = backend

    def forward(self, x_BTD: Tensor, rope: Tensor, seen: Any) -> Tensor:
        heads = (-1, self.head_dim)
        q_BTNH, k_BTKH, v_BTKH = (
            linear(x_BTD).unflatten(-1, heads) for linear in (self.wq, self.wk, self.wv)
        )
        if self.normalises:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        if self.turn is not None:
            q_BTNH, k_BTKH = self.turn(q_BTNH, rope), self.turn(k_BTKH, rope)
        sinks_N = None if self.sinks is None else own_part(self.sinks)
        out_BNTH = self.backend(
            q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), seen, sinks_N
        )
        return self.wo(out_BNTH.transpose(1, 2).flatten(2))

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; wo, which adds to the residual stream, and the sinks at `into_stream_std`. Biases become zero."""
        if self.normalises:
            self.q_norm.reset_parameters()
            self.k_norm.reset_parameters()
        for linear in (self.wq, self.wk, self.wv, self.wo):
            std = into_stream_std if linear is self.wo else init.linear_std
            truncated_normal_(linear.weight, std=std, bound=init.truncation, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.sinks is not None:
            truncated_normal_(
                self.sinks, std=into_stream_std, bound=init.truncation, generator=generator
            )
