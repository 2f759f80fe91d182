"""Experts whose grouped products are made in few bits, by torchao's prototypes.

Shapes: S slots sorted by expert, P slots with room between the experts, E experts, I and O width before and after a product.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from titanrun.components.checkpoints.adapters import is_adapter
from titanrun.components.converters.config import (
    ConverterConfig,
    Float8GroupedMmConfig,
    Mxfp8GroupedMmConfig,
)
from titanrun.components.converters.conversion import Conversion
from titanrun.distributed.torchao_parts import torchao_part

FLOAT8 = "prototype.moe_training.fp8_grouped_mm"
MXFP8 = "prototype.moe_training.mxfp8_grouped_mm"
MX_CONFIG = "prototype.mx_formats.config"
PREFERENCE = "quantization.quantize_.common.kernel_preference"

Product = Callable[..., Tensor]


class Room(NamedTuple):
    """Where each slot goes so that every expert's slots begin at a multiple of the block, and where the experts end then."""

    places_S: Tensor
    ends_E: Tensor
    size: int
    is_slot_S: Tensor


def convert_to_float8(
    config: Float8GroupedMmConfig, *, model: nn.Module, shards: int
) -> Conversion:
    """Gives the experts float8 products; the names of parameters stay."""
    product = partial(
        torchao_part(FLOAT8)._to_fp8_rowwise_then_scaled_grouped_mm,
        pad_token_groups_for_grouped_mm=False,
    )
    return give(model, config, config.fqns, product, kind="float8 rowwise")


def convert_to_mxfp8(config: Mxfp8GroupedMmConfig, *, model: nn.Module, shards: int) -> Conversion:
    """Gives the experts MXFP8 products; the names of parameters stay."""
    preference = torchao_part(PREFERENCE).KernelPreference
    product = partial(
        torchao_part(MXFP8)._to_mxfp8_then_scaled_grouped_mm,
        kernel_preference=preference.EMULATED if config.emulate else preference.AUTO,
        wgrad_with_hp=config.recipe_name == "mxfp8_wgrad_with_hp",
        scale_calculation_mode=torchao_part(MX_CONFIG).ScaleCalculationMode.RCEIL,
    )
    return give(
        model,
        config,
        config.fqns,
        product,
        kind=f"{config.recipe_name}{', emulated' if config.emulate else ''}",
    )


def give(
    model: nn.Module, config: ConverterConfig, fqns: tuple[str, ...], product: Product, *, kind: str
) -> Conversion:
    """Gives each stack of experts that `fqns` names the product, and says which were left."""
    taken, left = [], {}
    for name, module in model.named_modules():
        # a stack of experts is known by this attribute: converters know no model family
        if not hasattr(module, "product"):
            continue
        # those of adapters are multiplied as they are
        own = [
            weight for parameter, weight in module.named_parameters() if not is_adapter(parameter)
        ]
        widths = sorted({width for weight in own for width in weight.shape[1:]})
        if fqns and not any(text in name for text in fqns):
            left[name] = "fqns does not name it"
        elif module.product is not None:
            left[name] = "its products are converted already"
        elif any(width % config.block for width in widths):
            left[name] = f"{' x '.join(map(str, widths))} is not in blocks of {config.block}"
        else:
            module.product = partial(multiply, product=product, block=config.block)
            taken.append(name)
    return Conversion(taken=tuple(taken), left=left, kind=kind)


def multiply(
    x_SI: Tensor, weight_EOI: Tensor, counts_E: Tensor, *, product: Product, block: int
) -> Tensor:
    """x W^T with the matrix of each slot's expert; slots beyond the last count are padding and give zero."""
    room = room_for(counts_E, slots=x_SI.size(0), block=block)
    # the kernels give bf16, and emulate with it: what they multiply is coarser than that already
    dtype = torch.bfloat16
    x_PI = x_SI.new_zeros(room.size, x_SI.size(1), dtype=dtype).index_copy(
        0, room.places_S, x_SI.to(dtype)
    )
    y_PO = product(x_PI, weight_EOI.to(dtype).transpose(-2, -1), offs=room.ends_E, out_dtype=dtype)
    return torch.where(room.is_slot_S.unsqueeze(1), y_PO[room.places_S], 0).to(x_SI.dtype)


def room_for(counts_E: Tensor, *, slots: int, block: int) -> Room:
    """Room for the slots of each expert in whole blocks, without waiting for the device."""
    ends_E = counts_E.cumsum(0)
    room_E = (counts_E + block - 1) // block * block
    room_ends_E = room_E.cumsum(0)
    shifts_E = room_ends_E - room_E - (ends_E - counts_E)
    slots_S = torch.arange(slots, device=counts_E.device)
    experts_S = torch.searchsorted(ends_E, slots_S, right=True)
    # what no expert has follows the last one's room
    shifts = torch.cat([shifts_E, (room_ends_E - ends_E)[-1:]])
    size = (-(-slots // block) + counts_E.size(0)) * block
    return Room(
        slots_S + shifts[experts_S], room_ends_E.to(torch.int32), size, experts_S < counts_E.size(0)
    )
