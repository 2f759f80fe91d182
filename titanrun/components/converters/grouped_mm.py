"""Experts whose grouped products are computed in low precision, by torchao's prototypes.

Shapes: S slots sorted by expert, P slots with padding between the experts, E experts, I and O input
and output width of a product.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.adapter_weights import is_adapter
from titanrun.components.converters.config import (
    ConverterConfig,
    Float8GroupedMmConfig,
    Mxfp8GroupedMmConfig,
)
from titanrun.components.converters.conversion_report import ConversionReport
from titanrun.distributed.torchao_import import import_torchao

FLOAT8 = "prototype.moe_training.fp8_grouped_mm"
MXFP8 = "prototype.moe_training.mxfp8_grouped_mm"
MX_CONFIG = "prototype.mx_formats.config"
PREFERENCE = "quantization.quantize_.common.kernel_preference"

GroupedMm = Callable[..., Tensor]


class PaddedSlots(NamedTuple):
    """Padded position of each slot and end of each expert.

    Every expert's slots begin at a multiple of the block.
    """

    places_S: Tensor
    ends_E: Tensor
    size: int
    is_slot_S: Tensor


def convert_to_float8(
    config: Float8GroupedMmConfig, *, model: nn.Module, shards: int
) -> ConversionReport:
    """Compute the products of experts in float8; parameters keep their names."""
    product = partial(
        import_torchao(FLOAT8)._to_fp8_rowwise_then_scaled_grouped_mm,
        pad_token_groups_for_grouped_mm=False,
    )
    return set_grouped_mm(model, config, config.fqns, product, kind="float8 rowwise")


def convert_to_mxfp8(
    config: Mxfp8GroupedMmConfig, *, model: nn.Module, shards: int
) -> ConversionReport:
    """Compute the products of experts in MXFP8; parameters keep their names."""
    preference = import_torchao(PREFERENCE).KernelPreference
    product = partial(
        import_torchao(MXFP8)._to_mxfp8_then_scaled_grouped_mm,
        kernel_preference=preference.EMULATED if config.emulate else preference.AUTO,
        wgrad_with_hp=config.recipe_name == "mxfp8_wgrad_with_hp",
        scale_calculation_mode=import_torchao(MX_CONFIG).ScaleCalculationMode.RCEIL,
    )
    return set_grouped_mm(
        model,
        config,
        config.fqns,
        product,
        kind=f"{config.recipe_name}{', emulated' if config.emulate else ''}",
    )


def set_grouped_mm(
    model: nn.Module,
    config: ConverterConfig,
    fqns: tuple[str, ...],
    grouped_mm: GroupedMm,
    *,
    kind: str,
) -> ConversionReport:
    """Set the product of each stack of experts that `fqns` matches."""
    taken, left = [], {}
    for name, module in model.named_modules():
        # a stack of experts is identified by this attribute: converters know no model family
        if not hasattr(module, "grouped_mm"):
            continue
        # weights of adapters are multiplied without conversion
        own = [
            weight for parameter, weight in module.named_parameters() if not is_adapter(parameter)
        ]
        widths = sorted({width for weight in own for width in weight.shape[1:]})
        if fqns and not any(text in name for text in fqns):
            left[name] = "fqns does not name it"
        elif module.grouped_mm is not None:
            left[name] = "its products are converted already"
        elif any(width % config.alignment for width in widths):
            left[name] = f"{' x '.join(map(str, widths))} is not in blocks of {config.alignment}"
        else:
            module.grouped_mm = partial(
                multiply_padded_groups, grouped_mm=grouped_mm, block=config.alignment
            )
            taken.append(name)
    return ConversionReport(converted=tuple(taken), skipped=left, kind=kind)


def multiply_padded_groups(
    x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor, *, grouped_mm: GroupedMm, block: int
) -> Tensor:
    """Multiply each slot by the matrix of its expert: x W^T.

    Slots after the last count are padding, and their result is zero.
    """
    padded = compute_padded_slots(counts_E, slots=x_SI.size(0), block=block)
    # the kernels return bf16, and emulation uses it, too: the numbers that they multiply are
    # coarser than that already
    dtype = torch.bfloat16
    x_PI = x_SI.new_zeros(padded.size, x_SI.size(1), dtype=dtype).index_copy(
        0, padded.places_S, x_SI.to(dtype)
    )
    y_PO = grouped_mm(
        x_PI, weight_EOI.to(dtype).transpose(-2, -1), offs=padded.ends_E, out_dtype=dtype
    )
    return torch.where(padded.is_slot_S.unsqueeze(1), y_PO[padded.places_S], 0).to(x_SI.dtype)


def compute_padded_slots(counts_E: Tensor, *, slots: int, block: int) -> PaddedSlots:
    """Return positions of each expert's slots in whole blocks, without waiting for the device."""
    ends_E = counts_E.cumsum(0)
    padded_E = (counts_E + block - 1) // block * block
    padded_ends_E = padded_E.cumsum(0)
    shifts_E = padded_ends_E - padded_E - (ends_E - counts_E)
    slots_S = torch.arange(slots, device=counts_E.device)
    experts_S = torch.searchsorted(ends_E, slots_S, right=True)
    # slots without an expert follow the space of the last one
    shifts = torch.cat([shifts_E, (padded_ends_E - ends_E)[-1:]])
    size = (-(-slots // block) + counts_E.size(0)) * block
    return PaddedSlots(
        slots_S + shifts[experts_S],
        padded_ends_E.to(torch.int32),
        size,
        experts_S < counts_E.size(0),
    )
