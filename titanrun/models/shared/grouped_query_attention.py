"""Grouped-query attention (https://arxiv.org/abs/2305.13245) with the options of families.

Groups of query heads share a key and value head.

Shapes: B batch, T tokens of a sequence, D model width, N query heads, K key and value heads, H head
width.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn

from titanrun.config.types import OrAuto
from titanrun.distributed.dtensor import to_local
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.sdpa_attention import SdpaAttention
from titanrun.models.shared.weight_init import truncated_normal_

RotaryFn = Callable[[Tensor, Tensor], Tensor]


class HeadSizes(Protocol):
    """Config fields that attention reads."""

    @property
    def dim(self) -> OrAuto[int]:
        """Width of the residual stream."""

    @property
    def n_heads(self) -> OrAuto[int]:
        """Number of query heads."""

    @property
    def n_kv_heads(self) -> OrAuto[int]:
        """Number of key and value heads."""

    @property
    def head_dim(self) -> OrAuto[int]:
        """Width of one head."""

    @property
    def norm_eps(self) -> OrAuto[float]:
        """Epsilon of the norms."""


class GroupedQueryAttention(nn.Module):
    """Masked self-attention.

    Args:
        config: the sizes.
        backend: the attention back end.
        rotary_fn: applies rows of the RoPE cache to queries or keys [B, T, N, H]. None: no RoPE.
        qk_norm: whether queries and keys are normalized head by head.
        bias: whether the projections to queries, keys and values have biases.
        output_bias: whether the output projection has one.
        has_sinks: whether each query head has an attention sink: the score of a key without a
            token, whose value is zero.
    """

    def __init__(
        self,
        config: HeadSizes,
        *,
        backend: SdpaAttention,
        rotary_fn: RotaryFn | None,
        qk_norm: bool = False,
        bias: bool = False,
        output_bias: bool = False,
        has_sinks: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = unwrap_auto(config.head_dim)
        self.rotary_fn = rotary_fn
        self.has_qk_norm = qk_norm
        self.sinks = nn.Parameter(torch.empty(unwrap_auto(config.n_heads))) if has_sinks else None
        self.add_projections(config, bias=bias, output_bias=output_bias)
        if qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=unwrap_auto(config.norm_eps))
            self.k_norm = nn.RMSNorm(self.head_dim, eps=unwrap_auto(config.norm_eps))
        self.backend = backend

    def add_projections(self, config: HeadSizes, *, bias: bool, output_bias: bool) -> None:
        """Create the linear layers around the back end."""
        dim, width = unwrap_auto(config.dim), unwrap_auto(config.n_heads) * self.head_dim
        kv_width = unwrap_auto(config.n_kv_heads) * self.head_dim
        self.wq = nn.Linear(dim, width, bias=bias)
        self.wk = nn.Linear(dim, kv_width, bias=bias)
        self.wv = nn.Linear(dim, kv_width, bias=bias)
        self.wo = nn.Linear(width, dim, bias=output_bias)

    def forward(self, x_BTD: Tensor, rope: Tensor, mask: Any) -> Tensor:
        """Return the attention output [B, T, D]."""
        heads = (-1, self.head_dim)
        q_BTNH, k_BTKH, v_BTKH = (
            linear(x_BTD).unflatten(-1, heads) for linear in (self.wq, self.wk, self.wv)
        )
        if self.has_qk_norm:
            q_BTNH, k_BTKH = self.q_norm(q_BTNH), self.k_norm(k_BTKH)
        if self.rotary_fn is not None:
            q_BTNH, k_BTKH = self.rotary_fn(q_BTNH, rope), self.rotary_fn(k_BTKH, rope)
        # a norm may return fp32, but kernels need one dtype
        q_BTNH, k_BTKH = q_BTNH.type_as(v_BTKH), k_BTKH.type_as(v_BTKH)
        sinks_N = None if self.sinks is None else to_local(self.sinks)
        out_BNTH = self.backend(
            q_BTNH.transpose(1, 2), k_BTKH.transpose(1, 2), v_BTKH.transpose(1, 2), mask, sinks_N
        )
        out_BTD: Tensor = self.wo(out_BNTH.transpose(1, 2).flatten(2))
        return out_BTD

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights, with `residual_std` for wo and the sinks. Biases become zero.

        wo adds to the residual stream.
        """
        if self.has_qk_norm:
            self.q_norm.reset_parameters()
            self.k_norm.reset_parameters()
        for linear in (self.wq, self.wk, self.wv, self.wo):
            std = residual_std if linear is self.wo else init.linear_std
            truncated_normal_(linear.weight, std=std, bound=init.truncation, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
        if self.sinks is not None:
            truncated_normal_(
                self.sinks, std=residual_std, bound=init.truncation, generator=generator
            )
