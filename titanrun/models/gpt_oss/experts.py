"""The experts of gpt-oss: clamped SwiGLU with biases, of all experts of a layer in stacked matrices.

Shapes: S slots sorted by expert, E experts, D model width, F hidden width, J = 2 F gates and values in turns.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Generator, Tensor, nn

from titanrun.distributed.shards import own_part
from titanrun.models.gpt_oss.config import GptOssMoeConfig
from titanrun.models.shared.config import DecoderInitConfig
from titanrun.models.shared.grouped_experts import StackedExperts
from titanrun.models.shared.initialization import truncated_normal_


class ClampedExperts(StackedExperts):
    """Of expert e, mlp2[e] h + b2[e], where h comes of gates and values mlp1[e] x + b1[e]. Of weights that ranks split, each adds its
    part of b2."""

    matrices = ("mlp1_weight", "mlp2_weight")
    # gate and value stay together
    shared_dims: Mapping[str, int | None] = MappingProxyType(
        {"mlp1_weight": 1, "mlp1_bias": 1, "mlp2_weight": 2, "mlp2_bias": None}
    )

    def __init__(self, config: GptOssMoeConfig, *, dim: int) -> None:
        super().__init__(use_grouped_mm=config.use_grouped_mm)
        experts, hidden = config.num_experts, config.hidden_dim
        self.mlp1_weight = nn.Parameter(torch.empty(experts, 2 * hidden, dim))
        self.mlp1_bias = nn.Parameter(torch.empty(experts, 2 * hidden))
        self.mlp2_weight = nn.Parameter(torch.empty(experts, dim, hidden))
        self.mlp2_bias = nn.Parameter(torch.empty(experts, dim))
        self.config = config

    def forward(self, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs [S, D] of slots sorted by expert, `counts_E` to each."""
        # as the matrices in `times`
        b1_EJ, b2_ED = (own_part(bias).to(x_SD.dtype) for bias in (self.mlp1_bias, self.mlp2_bias))
        expert_S = expert_of_slots(counts_E, x_SD.size(0))
        h_SF = clamped_swiglu(
            self.times("mlp1_weight", x_SD, counts_E) + b1_EJ[expert_S], self.config
        )
        bias_ED = part_of_sum(b2_ED, h_SF.size(1) / self.config.hidden_dim)
        return self.times("mlp2_weight", h_SF, counts_E) + bias_ED[expert_S]

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw all weights and biases at `into_stream_std`."""
        for weight in (self.mlp1_weight, self.mlp1_bias, self.mlp2_weight, self.mlp2_bias):
            truncated_normal_(
                weight, std=into_stream_std, bound=init.truncation, generator=generator
            )


def clamped_swiglu(h_SJ: Tensor, config: GptOssMoeConfig) -> Tensor:
    """(clamp(value) + 1) * gate * sigmoid(alpha * gate), with gates cut off above."""
    gate_SF = h_SJ[..., ::2].clamp(max=config.swiglu_limit)
    value_SF = h_SJ[..., 1::2].clamp(-config.swiglu_limit, config.swiglu_limit)
    return gate_SF * torch.sigmoid(config.swiglu_alpha * gate_SF) * (value_SF + 1)


def expert_of_slots(counts_E: Tensor, slots: int) -> Tensor:
    """The expert of each slot [S], without waiting for the device; of padding behind the last expert that one."""
    places_S = torch.arange(slots, device=counts_E.device)
    return torch.searchsorted(counts_E.cumsum(0), places_S, right=True).clamp(
        max=counts_E.numel() - 1
    )


def part_of_sum(bias: Tensor, part: float) -> Tensor:
    """A bias of which each rank adds its part to a sum over ranks. Every rank has the whole gradient: that of the sum."""
    return bias if part == 1 else bias + (part - 1) * bias.detach()
