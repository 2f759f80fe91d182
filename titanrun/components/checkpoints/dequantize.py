"""Expands the quantised weights of a Hugging Face folder, under the names that the plain weights have there: for every model family.

Shape letters: E experts, N rows of a matrix, K columns, G groups of 32 values, B bytes of a group (two values each).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from titanrun.components.checkpoints.quantization import Quantization
from titanrun.config.problems import ProblemsFound, fail

FP8_SCALE = "_scale_inv"
MXFP4_BLOCKS, MXFP4_SCALES = "_blocks", "_scales"
# the 16 values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), and the offset of E8M0, the exponent they share
FP4_VALUES = (
    0.0,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
    6.0,
    -0.0,
    -0.5,
    -1.0,
    -1.5,
    -2.0,
    -3.0,
    -4.0,
    -6.0,
)
E8M0_BIAS = 127


def expanded(tensors: Mapping[str, Tensor], quantization: Quantization) -> dict[str, Tensor]:
    """The plain weights: packed ones in fp32, their scales gone, the others as they are.

    Raises a problem `checkpoint` where a scale or a packed tensor is alone, or their shapes do not fit.
    """
    rest = dict(tensors)
    expand = _expand_fp8 if quantization.method == "fp8" else _expand_mxfp4
    found = {
        name: tensor
        for packed in list(rest)
        for name, tensor in expand(packed, rest, quantization.block)
    }
    _refuse_packed(rest)
    return rest | found


def fp8_weight(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """weight_NK times the scale of its block, in fp32; the last blocks may be cut off. Leading dims are those of both."""
    rows, columns = weight.shape[-2:]
    spread = scale.to(torch.float32).repeat_interleave(block[0], dim=-2)[..., :rows, :]
    spread = spread.repeat_interleave(block[1], dim=-1)[..., :columns]
    return weight.to(torch.float32).mul_(spread)


def mxfp4_weight(blocks_ENGB: Tensor, scales_ENG: Tensor) -> Tensor:
    """weight_EKN in fp32, exact: of two values in a byte the low half comes first, and transformers keeps experts' matrices as K x N."""
    values = torch.tensor(FP4_VALUES, dtype=torch.float32, device=blocks_ENGB.device)
    low, high = values[(blocks_ENGB & 0x0F).long()], values[(blocks_ENGB >> 4).long()]
    pairs = torch.stack((low, high), dim=-1).flatten(-2)
    exponent = scales_ENG.to(torch.int32)[..., None] - E8M0_BIAS
    return torch.ldexp(pairs, exponent).flatten(-2).transpose(-1, -2).contiguous()


def _expand_fp8(
    name: str, rest: dict[str, Tensor], block: tuple[int, int]
) -> list[tuple[str, Tensor]]:
    if name + FP8_SCALE not in rest:
        return []
    weight, scale = rest.pop(name), rest.pop(name + FP8_SCALE)
    expected = (
        *weight.shape[:-2],
        *(-(-size // step) for size, step in zip(weight.shape[-2:], block, strict=True)),
    )
    if tuple(scale.shape) != expected or weight.dtype != torch.float8_e4m3fn:
        raise _unfit(
            name,
            f"{_of(weight)} in blocks of {block[0]} x {block[1]} does not go with scales {_of(scale)}",
        )
    return [(name, fp8_weight(weight, scale, block))]


def _expand_mxfp4(
    name: str, rest: dict[str, Tensor], _: tuple[int, int]
) -> list[tuple[str, Tensor]]:
    plain = name.removesuffix(MXFP4_BLOCKS)
    if plain == name or plain + MXFP4_SCALES not in rest:
        return []
    blocks, scales = rest.pop(name), rest.pop(plain + MXFP4_SCALES)
    if (
        blocks.shape[:-1] != scales.shape
        or blocks.dtype != torch.uint8
        or scales.dtype != torch.uint8
        or blocks.dim() != 4
    ):
        raise _unfit(plain, f"blocks {_of(blocks)} do not go with scales {_of(scales)}")
    return [(plain, mxfp4_weight(blocks, scales))]


def _refuse_packed(rest: Mapping[str, Tensor]) -> None:
    """Raises where something is left that only makes sense as a pair."""
    halves = (FP8_SCALE, MXFP4_BLOCKS, MXFP4_SCALES)
    alone = [
        name
        for name, tensor in rest.items()
        if name.endswith(halves) or (tensor.itemsize == 1 and tensor.dtype != torch.bool)
    ]
    if alone:
        more = f", and {len(alone) - 1} more are so" if len(alone) > 1 else ""
        raise _unfit(alone[0], f"its other half is missing{more}")


def _unfit(name: str, reason: str) -> ProblemsFound:
    return fail(
        "checkpoint",
        f"the quantised weight {name} cannot be expanded: {reason}",
        help="check that the folder holds all files",
    )


def _of(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
