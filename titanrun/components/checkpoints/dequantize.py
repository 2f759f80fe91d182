"""Dequantization of the weights of a Hugging Face folder.

Works for every model family: names stay those of the plain weights there. Shape letters: E experts,
N rows of a matrix, K columns, G groups of 32 values, B bytes of a group (two values each).
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from titanrun.components.checkpoints.spec.hf_quantization import HFQuantization
from titanrun.config.problems import ProblemsFound, problem_error

FP8_SCALE = "_scale_inv"
MXFP4_BLOCKS, MXFP4_SCALES = "_blocks", "_scales"
# the 16 values of FP4 E2M1 (OCP Microscaling Formats 1.0, table 5), and the bias of E8M0, the
# exponent that they share
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


def dequantize_weights(
    tensors: Mapping[str, Tensor], quantization: HFQuantization
) -> dict[str, Tensor]:
    """Return the plain weights: quantized ones in fp32, without scales, the others unchanged.

    Raises:
        ProblemsFound: A problem `checkpoint` if a scale or a quantized tensor is unpaired, or their
            shapes do not match.
    """
    rest = dict(tensors)
    expand = _dequantize_fp8_pair if quantization.method == "fp8" else _dequantize_mxfp4_pair
    found = {
        name: tensor
        for quantized in list(rest)
        for name, tensor in expand(quantized, rest, quantization.block)
    }
    _check_none_quantized(rest)
    return rest | found


def dequantize_fp8(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """Multiply weight_NK by the scale of its block, in fp32.

    The last blocks may be partial. Weight and scale share leading dimensions.
    """
    rows, columns = weight.shape[-2:]
    spread = scale.to(torch.float32).repeat_interleave(block[0], dim=-2)[..., :rows, :]
    spread = spread.repeat_interleave(block[1], dim=-1)[..., :columns]
    return weight.to(torch.float32).mul_(spread)


def dequantize_mxfp4(blocks_ENGB: Tensor, scales_ENG: Tensor) -> Tensor:
    """Return weight_EKN in fp32, exactly.

    Of two values in a byte, the low half comes first. transformers stores experts' matrices as K x
    N.
    """
    values = torch.tensor(FP4_VALUES, dtype=torch.float32, device=blocks_ENGB.device)
    low, high = values[(blocks_ENGB & 0x0F).long()], values[(blocks_ENGB >> 4).long()]
    pairs = torch.stack((low, high), dim=-1).flatten(-2)
    exponent = scales_ENG.to(torch.int32)[..., None] - E8M0_BIAS
    return torch.ldexp(pairs, exponent).flatten(-2).transpose(-1, -2).contiguous()


def _dequantize_fp8_pair(
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
        raise _dequantize_error(
            name,
            f"{_format_tensor_type(weight)} in blocks of {block[0]} x {block[1]} does not match "
            f"scales {_format_tensor_type(scale)}",
        )
    return [(name, dequantize_fp8(weight, scale, block))]


def _dequantize_mxfp4_pair(
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
        raise _dequantize_error(
            plain,
            f"blocks {_format_tensor_type(blocks)} do not match "
            f"scales {_format_tensor_type(scales)}",
        )
    return [(plain, dequantize_mxfp4(blocks, scales))]


def _check_none_quantized(rest: Mapping[str, Tensor]) -> None:
    """Raise if an unpaired half is left."""
    halves = (FP8_SCALE, MXFP4_BLOCKS, MXFP4_SCALES)
    unpaired = [
        name
        for name, tensor in rest.items()
        if name.endswith(halves) or (tensor.itemsize == 1 and tensor.dtype != torch.bool)
    ]
    if unpaired:
        more = f", as for {len(unpaired) - 1} more" if len(unpaired) > 1 else ""
        raise _dequantize_error(unpaired[0], f"its other half is missing{more}")


def _dequantize_error(name: str, reason: str) -> ProblemsFound:
    return problem_error(
        "checkpoint",
        f"the quantized weight {name} cannot be dequantized: {reason}",
        hint="check that the folder holds all files",
    )


def _format_tensor_type(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
