"""Launches of AdamW in one Triton kernel a weight, with the formulas of the optimizers in Python.

The optimizers import this module by name, and only if the weights are on a device that Triton
compiles for. Kernels read `grad_scale`, by which they divide gradients, and `found_inf`: if it is
1, they write nothing.

Kernels see a weight as a flat list of numbers. `TRITON_INTERPRET=1` runs them on a CPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from torch import Tensor

from titanrun.components.optimizers.adamw_triton import adamw_kernel, low_bit_adamw_kernel

# numbers that one program updates
TILE = 1024
# four numbers a thread: 16 bytes of a weight, and few enough registers
WARPS = 8
# codes of 8 bits
NUM_CODES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWStep:
    """Numbers of one update, computed in float64.

    Args:
        mean_rate: weight of a gradient in the running mean.
        square_decay: weight of the running mean of squares in its next value.
        square_rate: weight of a squared gradient in it.
        mean_correction: what the mean is divided by to correct its start at zero.
        square_correction: the same of the mean of squares.
        lr: learning rate.
        decay: factor of the weight before its update.
        eps: term added to the root of the second moment.
        grad_scale: scalar on the device that gradients are divided by. None: 1.
        found_inf: scalar on the device, 1 if nothing is written. None: 0.
    """

    mean_rate: float
    square_decay: float
    square_rate: float
    mean_correction: float
    square_correction: float
    lr: float
    decay: float
    eps: float
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    @classmethod
    def from_group(
        cls, group: Mapping[str, Any], *, steps: float, optimizer: object
    ) -> "AdamWStep":
        """Compute the numbers of a group's update, `steps` with this one.

        The scalars on the device are the attributes that torch's kernels read.
        """
        beta1, beta2 = group["betas"]
        return cls(
            mean_rate=1 - beta1,
            square_decay=beta2,
            square_rate=1 - beta2,
            mean_correction=1 - beta1**steps,
            square_correction=1 - beta2**steps,
            lr=group["lr"],
            decay=1 - group["lr"] * group["weight_decay"],
            eps=group["eps"],
            grad_scale=getattr(optimizer, "grad_scale", None),
            found_inf=getattr(optimizer, "found_inf", None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMean:
    """Running mean in 8-bit codes, with a scale per block of neighbors.

    Args:
        codes: codes (uint8).
        scales: scale of each block.
        max_value: largest number relative to its scale.
        table: number (fp32) of each code. If these ascend, the limits between them follow, else
            codes are float8 (e4m3).
    """

    codes: Tensor
    scales: Tensor
    max_value: float
    table: Tensor

    @property
    def kind(self) -> str:
        """Format of the codes."""
        return "float8" if self.table.numel() == NUM_CODES else "map"


def update_adamw(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: AdamWStep
) -> None:
    """Update a weight whose running means are stored as numbers, as `Bfloat16StateAdamW` does."""
    adamw_kernel[(triton.cdiv(weight.numel(), TILE),)](
        weight,
        grad.contiguous(),
        mean,
        square,
        step.grad_scale,
        step.found_inf,
        step.mean_rate,
        step.square_decay,
        step.square_rate,
        step.square_correction,
        step.eps,
        step.decay,
        -step.lr / step.mean_correction,
        weight.numel(),
        size=TILE,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )


def update_low_bit_adamw(
    weight: Tensor,
    grad: Tensor,
    mean: Tensor | CodedMean,
    square: Tensor | CodedMean,
    step: AdamWStep,
) -> None:
    """Update a weight whose running means are codes, or both fp32, as `LowBitAdamW` does."""
    if weight.numel() == 0:
        return
    kind, size, max_value = "plain", TILE, 1.0
    if isinstance(mean, CodedMean):
        kind, max_value = mean.kind, mean.max_value
        size = weight.numel() // mean.scales.numel()
    num_blocks = max(1, TILE // size)
    low_bit_adamw_kernel[(triton.cdiv(weight.numel(), size * num_blocks),)](
        weight,
        grad.contiguous(),
        *get_pointers(mean),
        *get_pointers(square),
        step.grad_scale,
        step.found_inf,
        step.mean_rate,
        step.square_rate,
        step.square_correction**0.5,
        step.eps,
        step.decay,
        -step.lr / step.mean_correction,
        max_value,
        weight.numel(),
        size=size,
        num_blocks=num_blocks,
        kind=kind,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )


def get_pointers(mean: Tensor | CodedMean) -> tuple[Tensor | None, ...]:
    """Return the numbers, scales and table of a running mean."""
    return (mean, None, None) if isinstance(mean, Tensor) else (mean.codes, mean.scales, mean.table)
