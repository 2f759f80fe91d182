"""Experts of gpt-oss: clamped SwiGLU with biases, in stacked matrices.

Shapes: S slots sorted by expert, E experts, D model width, F hidden width, J = 2 F alternating
gates and values.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from titanrun.config.types import OrAuto
from titanrun.distributed.dtensor import to_local
from titanrun.models.shared.config import DecoderInitConfig, unwrap_auto
from titanrun.models.shared.grouped_experts import StackedExperts
from titanrun.models.shared.weight_init import truncated_normal_


class ClampedExpertSizes(Protocol):
    """Config fields that the experts read."""

    @property
    def num_experts(self) -> OrAuto[int]:
        """Number of experts."""

    @property
    def hidden_dim(self) -> OrAuto[int]:
        """Hidden width of an expert."""

    @property
    def use_grouped_mm(self) -> bool:
        """Whether to use one grouped matrix product."""

    @property
    def swiglu_limit(self) -> OrAuto[float] | None:
        """Upper limit of gates, and limit +- of values."""

    @property
    def swiglu_alpha(self) -> OrAuto[float] | None:
        """Factor on the gate within the sigmoid."""


class ClampedExperts(StackedExperts):
    """Experts of clamped SwiGLU with biases.

    Expert e computes mlp2[e] h + b2[e], where h comes from the gates and values mlp1[e] x + b1[e].
    If ranks split the weights, each adds its fraction of b2.
    """

    matrices = ("mlp1_weight", "mlp2_weight")
    # gate and value stay on the same rank
    etp_dims: Mapping[str, int | None] = MappingProxyType(
        {"mlp1_weight": 1, "mlp1_bias": 1, "mlp2_weight": 2, "mlp2_bias": None}
    )

    def __init__(self, config: ClampedExpertSizes, *, dim: int) -> None:
        super().__init__(use_grouped_mm=config.use_grouped_mm, activate=apply_clamped_swiglu)
        experts, hidden = unwrap_auto(config.num_experts), unwrap_auto(config.hidden_dim)
        self.mlp1_weight = nn.Parameter(torch.empty(experts, 2 * hidden, dim))
        self.mlp1_bias = nn.Parameter(torch.empty(experts, 2 * hidden))
        self.mlp2_weight = nn.Parameter(torch.empty(experts, dim, hidden))
        self.mlp2_bias = nn.Parameter(torch.empty(experts, dim))
        self.config = config

    def forward(self, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Return outputs [S, D] of slots sorted by expert. `counts_E` are the slots of each."""
        # cast like the matrices in `multiply`
        b1_EJ, b2_ED = (to_local(bias).to(x_SD.dtype) for bias in (self.mlp1_bias, self.mlp2_bias))
        expert_S = compute_slot_experts(counts_E, x_SD.size(0))
        limit = unwrap_auto(self.config.swiglu_limit)
        alpha = unwrap_auto(self.config.swiglu_alpha)
        assert limit is not None and alpha is not None, "clamped SwiGLU has both"
        h_SF = self.activate(
            self.multiply("mlp1_weight", x_SD, counts_E) + b1_EJ[expert_S],
            limit=limit,
            alpha=alpha,
        )
        bias_ED = scale_summed_bias(b2_ED, h_SF.size(1) / unwrap_auto(self.config.hidden_dim))
        return self.multiply("mlp2_weight", h_SF, counts_E) + bias_ED[expert_S]

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize all weights and biases with `residual_std`."""
        for weight in (self.mlp1_weight, self.mlp1_bias, self.mlp2_weight, self.mlp2_bias):
            truncated_normal_(weight, std=residual_std, bound=init.truncation, generator=generator)


def apply_clamped_swiglu(h_SJ: Tensor, *, limit: float, alpha: float) -> Tensor:
    """Return (clamp(value) + 1) * gate * sigmoid(alpha * gate), with gates limited above."""
    gate_SF = h_SJ[..., ::2].clamp(max=limit)
    value_SF = h_SJ[..., 1::2].clamp(-limit, limit)
    return gate_SF * torch.sigmoid(alpha * gate_SF) * (value_SF + 1)


def compute_slot_experts(counts_E: Tensor, num_slots: int) -> Tensor:
    """Return the expert of each slot [S] without waiting for the device.

    Padding behind the last expert belongs to the last expert.
    """
    places_S = torch.arange(num_slots, device=counts_E.device)
    return torch.searchsorted(counts_E.cumsum(0), places_S, right=True).clamp(
        max=counts_E.numel() - 1
    )


def scale_summed_bias(bias: Tensor, part: float) -> Tensor:
    """Return this rank's `part` of a bias that is summed over ranks.

    Every rank gets the whole gradient: that of the sum.
    """
    return bias if part == 1 else bias + (part - 1) * bias.detach()
