"""Experts of one layer as three stacked matrices, run by a grouped product or a loop.

Shapes: S slots sorted by expert, E experts, D model width, F hidden width, I and O width before and
after a product.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.distributed.device import has_compute_capability
from titanrun.distributed.dtensor import to_local
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig, unwrap_auto
from titanrun.models.shared.weight_init import truncated_normal_

# torch's grouped product needs rows whose size is a multiple of this many bytes
GROUPED_ALIGNMENT = 16
# the oldest NVIDIA compute capability with a kernel, which supports bf16 only
GROUPED_CAPABILITY = (9, 0)


GroupedMM = Callable[[Tensor, Tensor, Tensor], Tensor]


class StackedExperts(nn.Module):
    """Experts of one layer whose matrices [E, O, I] are stacked.

    If ranks split the weights, each rank computes with its part. `grouped_mm` is set by a converter
    to replace the products. A converter may also replace `multiply` of the module.
    """

    # names of the weights by which tokens are multiplied
    matrices: ClassVar[tuple[str, ...]]
    # the dim of each weight that is split over ranks which share one expert; None: each has the
    # whole weight
    etp_dims: Mapping[str, int | None]
    # replicated weights whose gradients on those ranks are partial sums
    partial_grad_names: frozenset[str] = frozenset()
    # element-wise function between the products; compiled with the layer
    activate: Callable[..., Tensor]

    def __init__(self, *, use_grouped_mm: bool, activate: Callable[..., Tensor]) -> None:
        super().__init__()
        self.activate = activate
        self.use_grouped_mm = use_grouped_mm
        self.grouped_mm: GroupedMM | None = None
        # set when the weights are split
        self.gradient_placements: Mapping[str, Sequence[Any]] = {}

    @property
    def compiled_functions(self) -> Mapping[str, Callable[..., Tensor]]:
        """Attributes that are compiled with a layer."""
        return {"activate": self.activate}

    def multiply(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """Multiply slots sorted by expert by the matrices `name`, [S, O].

        `counts_E` are the slots of each expert.
        """
        return self.multiply_with(x_SI, name, counts_E, grouped_mm=self.grouped_mm)

    def multiply_unconverted(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """Multiply like `multiply`, but ignore the product of a converter."""
        return self.multiply_with(x_SI, name, counts_E, grouped_mm=None)

    def multiply_with(
        self, x_SI: Tensor, name: str, counts_E: Tensor, *, grouped_mm: GroupedMM | None
    ) -> Tensor:
        """Multiply by the matrices `name`, with `grouped_mm` if it is given."""
        # this rank's part; the stream may have a smaller dtype than the weights
        weight_EOI = to_local(
            getattr(self, name), grad_placements=self.gradient_placements.get(name)
        ).to(x_SI.dtype)
        return choose_grouped_mm(
            x_SI, weight_EOI, override=grouped_mm, uses_kernel=self.use_grouped_mm
        )(x_SI, weight_EOI, counts_E)


class GroupedExperts(StackedExperts):
    """SwiGLU experts: expert e computes w2[e](silu(w1[e] x) * w3[e] x)."""

    matrices = ("w1", "w2", "w3")
    # dim of F
    etp_dims: Mapping[str, int | None] = MappingProxyType({"w1": 1, "w2": 2, "w3": 1})

    def __init__(self, config: MoeConfig, *, dim: int) -> None:
        super().__init__(use_grouped_mm=config.use_grouped_mm, activate=apply_swiglu)
        experts, hidden = unwrap_auto(config.num_experts), unwrap_auto(config.hidden_dim)
        self.w1 = nn.Parameter(torch.empty(experts, hidden, dim))
        self.w2 = nn.Parameter(torch.empty(experts, dim, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, hidden, dim))

    def forward(self, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Return outputs [S, D] of slots sorted by expert. `counts_E` are the slots of each."""
        h_SF = self.activate(
            self.multiply("w1", x_SD, counts_E), self.multiply("w3", x_SD, counts_E)
        )
        return self.multiply("w2", h_SF, counts_E)

    def init_weights(
        self, init: DecoderInitConfig, *, residual_std: float, generator: Generator | None
    ) -> None:
        """Initialize the weights, with `residual_std` for w2 and w3.

        w2 adds to the residual stream.
        """
        for weight, std in (
            (self.w1, init.linear_std),
            (self.w2, residual_std),
            (self.w3, residual_std),
        ):
            truncated_normal_(weight, std=std, bound=init.truncation, generator=generator)


def apply_swiglu(gate_SF: Tensor, value_SF: Tensor) -> Tensor:
    """Return silu(gate) * value."""
    return F.silu(gate_SF) * value_SF


def choose_grouped_mm(
    x_SI: Tensor, weight_EOI: Tensor, *, override: GroupedMM | None, uses_kernel: bool
) -> GroupedMM:
    """Choose the product of slots and matrices.

    It is that of a converter, a grouped kernel if wanted and possible, or a loop.
    """
    if override is not None and x_SI.size(0) > 0:
        return override
    return (
        kernel_grouped_mm
        if uses_kernel and can_use_grouped_mm(x_SI, weight_EOI)
        else loop_grouped_mm
    )


def can_use_grouped_mm(x_SI: Tensor, weight_EOI: Tensor) -> bool:
    """Return whether torch's grouped product supports the device, the dtype and the widths."""
    widths_fit = all(
        width * x_SI.element_size() % GROUPED_ALIGNMENT == 0 for width in weight_EOI.shape[1:]
    )
    if not hasattr(F, "grouped_mm") or not widths_fit or x_SI.size(0) == 0:
        return False
    if x_SI.device.type == "cpu":
        return x_SI.dtype in (torch.float32, torch.bfloat16)
    return x_SI.dtype == torch.bfloat16 and has_compute_capability(x_SI.device, GROUPED_CAPABILITY)


def kernel_grouped_mm(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """Return x W^T with the matrix of each slot's expert, in one kernel."""
    ends_E = counts_E.cumsum(0).to(torch.int32)
    return F.grouped_mm(x_SI, weight_EOI.transpose(-2, -1), offs=ends_E)


def loop_grouped_mm(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """Return x W^T with the matrix of each slot's expert, one expert after the other.

    Slots beyond the last count are padding and become zero.
    """
    counts = counts_E.tolist()
    parts = [
        part @ weight_OI.T
        for part, weight_OI in zip(x_SI[: sum(counts)].split(counts), weight_EOI, strict=True)
    ]
    padding = x_SI.new_zeros(x_SI.size(0) - sum(counts), weight_EOI.size(1))
    return torch.cat([*parts, padding])
