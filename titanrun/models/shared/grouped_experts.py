"""Experts of one layer as three stacked matrices, run by one grouped product or one after the other.

Shapes: S slots sorted by expert, E experts, D model width, F hidden width, I and O width before and after a product.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from titanrun.distributed.shards import own_part
from titanrun.models.shared.config import DecoderInitConfig, MoeConfig
from titanrun.models.shared.initialization import truncated_normal_

# torch's grouped product reads rows in pieces of so many bytes
GROUPED_ALIGNMENT = 16
# the oldest NVIDIA generation whose kernel does it, and the one dtype it takes
GROUPED_CAPABILITY = (9, 0)


Product = Callable[[Tensor, Tensor, Tensor], Tensor]


class StackedExperts(nn.Module):
    """Experts of one layer whose matrices [E, O, I] are stacked. Of weights that ranks split, each runs its part.

    `product` is what a converter puts in the place of the products here; it may also give the module another `times`.
    """

    # the weights that tokens are multiplied by
    matrices: ClassVar[tuple[str, ...]]
    # the dim of each weight that ranks split which share one expert; None: each has the whole
    shared_dims: Mapping[str, int | None]
    # the whole ones of which the gradients on those ranks are summands
    summands: frozenset[str] = frozenset()

    def __init__(self, *, use_grouped_mm: bool) -> None:
        super().__init__()
        self.use_grouped_mm = use_grouped_mm
        self.product: Product | None = None
        # whoever splits the weights says so here
        self.gradient_placements: Mapping[str, Sequence[Any]] = {}

    def times(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """Slots [S, O] sorted by expert, `counts_E` to each, multiplied by the matrices `name`."""
        return self.multiplied(x_SI, name, counts_E, product=self.product)

    def plain_times(self, name: str, x_SI: Tensor, counts_E: Tensor) -> Tensor:
        """As `times`, whatever a converter says."""
        return self.multiplied(x_SI, name, counts_E, product=None)

    def multiplied(
        self, x_SI: Tensor, name: str, counts_E: Tensor, *, product: Product | None
    ) -> Tensor:
        """The product, made by `product` if there is one."""
        # this rank's part, and under autocast the stream is narrower than the weights
        weight_EOI = own_part(getattr(self, name), gradients=self.gradient_placements.get(name)).to(
            x_SI.dtype
        )
        return product_for(x_SI, weight_EOI, converted=product, grouped=self.use_grouped_mm)(
            x_SI, weight_EOI, counts_E
        )


class GroupedExperts(StackedExperts):
    """SwiGLU experts: of expert e, w2[e](silu(w1[e] x) * w3[e] x)."""

    matrices = ("w1", "w2", "w3")
    # F
    shared_dims: Mapping[str, int | None] = MappingProxyType({"w1": 1, "w2": 2, "w3": 1})

    def __init__(self, config: MoeConfig, *, dim: int) -> None:
        super().__init__(use_grouped_mm=config.use_grouped_mm)
        experts, hidden = config.num_experts, config.hidden_dim
        self.w1 = nn.Parameter(torch.empty(experts, hidden, dim))
        self.w2 = nn.Parameter(torch.empty(experts, dim, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, hidden, dim))

    def forward(self, x_SD: Tensor, counts_E: Tensor) -> Tensor:
        """Outputs [S, D] of slots sorted by expert, `counts_E` to each."""
        h_SF = F.silu(self.times("w1", x_SD, counts_E)) * self.times("w3", x_SD, counts_E)
        return self.times("w2", h_SF, counts_E)

    def init_weights(
        self, init: DecoderInitConfig, *, into_stream_std: float, generator: Generator | None
    ) -> None:
        """Draw the weights; w2, which adds to the residual stream, and w3 at `into_stream_std`."""
        for weight, std in (
            (self.w1, init.linear_std),
            (self.w2, into_stream_std),
            (self.w3, into_stream_std),
        ):
            truncated_normal_(weight, std=std, bound=init.truncation, generator=generator)


def product_for(
    x_SI: Tensor, weight_EOI: Tensor, *, converted: Product | None, grouped: bool
) -> Product:
    """How slots are multiplied by the matrices: as a converter says, in one grouped product if that is wanted and possible, or in turn."""
    if converted is not None and x_SI.size(0) > 0:
        return converted
    return grouped_product if grouped and can_group(x_SI, weight_EOI) else product_by_expert


def can_group(x_SI: Tensor, weight_EOI: Tensor) -> bool:
    """Whether torch's grouped product takes the device, the dtype and the widths."""
    widths_fit = all(
        width * x_SI.element_size() % GROUPED_ALIGNMENT == 0 for width in weight_EOI.shape[1:]
    )
    if not hasattr(F, "grouped_mm") or not widths_fit or x_SI.size(0) == 0:
        return False
    if x_SI.device.type == "cpu":
        return x_SI.dtype in (torch.float32, torch.bfloat16)
    return (
        x_SI.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(x_SI.device) >= GROUPED_CAPABILITY
    )


def grouped_product(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """x W^T with the matrix of each slot's expert, in one kernel."""
    ends_E = counts_E.cumsum(0).to(torch.int32)
    return F.grouped_mm(x_SI, weight_EOI.transpose(-2, -1), offs=ends_E)


def product_by_expert(x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
    """The same, one expert after the other; slots beyond the last count are padding and give zero."""
    counts = counts_E.tolist()
    parts = [
        part @ weight_OI.T
        for part, weight_OI in zip(x_SI[: sum(counts)].split(counts), weight_EOI, strict=True)
    ]
    padding = x_SI.new_zeros(x_SI.size(0) - sum(counts), weight_EOI.size(1))
    return torch.cat([*parts, padding])
