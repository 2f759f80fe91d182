"""Quantised weights of Hugging Face folders, against transformers' own expansion of the same
bytes."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from titanrun.components.checkpoints.dequantize import (
    dequantize_fp8,
    dequantize_mxfp4,
    dequantize_weights,
)
from titanrun.components.checkpoints.huggingface import read_hf_folder
from titanrun.components.checkpoints.spec.hf_quantization import (
    HFQuantization,
    check_hf_quantization,
    find_hf_quantization,
)
from titanrun.config.problems import ProblemsFound

FP8, MXFP4 = HFQuantization("fp8"), HFQuantization("mxfp4")


def fp8_file(*shape: int, block: tuple[int, int] = (128, 128)) -> tuple[torch.Tensor, torch.Tensor]:
    """Every finite value of the format, and a scale for each block."""
    weight = (torch.randn(shape) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    scale = torch.rand(*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1])) + 1e-3
    return weight, scale


@pytest.mark.parametrize("shape", [(256, 384), (3, 128, 256)])
def test_fp8_blocks_are_those_of_transformers(shape: tuple[int, ...]) -> None:
    weight, scale = fp8_file(*shape)
    theirs = Fp8Dequantize(None)._dequantize_one(weight, scale, output_dtype=torch.float32)
    assert torch.equal(dequantize_fp8(weight, scale, (128, 128)), theirs)


def test_the_last_blocks_of_fp8_may_be_cut_off() -> None:
    weight, scale = fp8_file(576, 200)
    found = dequantize_fp8(weight, scale, (128, 128))
    for row, column in ((0, 0), (127, 199), (575, 128), (512, 127)):
        expected = weight[row, column].float() * scale[row // 128, column // 128]
        assert found[row, column] == expected


def test_mxfp4_is_that_of_transformers() -> None:
    blocks = (
        torch.arange(2 * 5 * 3 * 16, dtype=torch.int64)
        .reshape(2, 5, 3, 16)
        .remainder(256)
        .to(torch.uint8)
    )
    scales = torch.randint(100, 150, (2, 5, 3), dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16):
        # the values and their exponents are exact in bf16 too
        assert torch.equal(
            dequantize_mxfp4(blocks, scales).to(dtype),
            convert_moe_packed_tensors(blocks, scales, dtype=dtype),
        )


def test_what_is_packed_is_expanded_under_the_plain_name_and_the_rest_stays() -> None:
    weight, scale = fp8_file(128, 128)
    norm = torch.ones(4, dtype=torch.bfloat16)
    found = dequantize_weights(
        {"a.weight": weight, "a.weight_scale_inv": scale, "norm.weight": norm}, FP8
    )
    assert found.keys() == {"a.weight", "norm.weight"}
    assert found["a.weight"].dtype == torch.float32
    assert found["norm.weight"] is norm
    blocks, scales = (
        torch.zeros(1, 4, 1, 16, dtype=torch.uint8),
        torch.zeros(1, 4, 1, dtype=torch.uint8),
    )
    found = dequantize_weights(
        {
            "experts.down_proj_blocks": blocks,
            "experts.down_proj_scales": scales,
            "norm.weight": norm,
        },
        MXFP4,
    )
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "experts.down_proj": (1, 32, 4),
        "norm.weight": (4,),
    }


@pytest.mark.parametrize("shape", [(576, 200), (3, 128, 200)])
def test_a_file_may_have_partial_blocks_and_plain_weights_of_one_byte(
    shape: tuple[int, ...],
) -> None:
    weight, scale = fp8_file(*shape)
    mask = torch.ones(3, dtype=torch.bool)
    found = dequantize_weights({"a.weight": weight, "a.weight_scale_inv": scale, "mask": mask}, FP8)
    assert torch.equal(found["a.weight"], dequantize_fp8(weight, scale, (128, 128)))
    assert found["mask"] is mask


def test_halves_and_shapes_that_do_not_fit_are_named() -> None:
    weight, scale = fp8_file(128, 256)
    cases = [
        ({"a.weight": weight}, FP8, "a.weight cannot be dequantized: its other half is missing"),
        (
            {"a.weight_scale_inv": scale},
            FP8,
            "a.weight_scale_inv cannot be dequantized: its other half is missing",
        ),
        (
            {"a.weight": weight, "a.weight_scale_inv": scale[:, :1]},
            FP8,
            r"blocks of 128 x 128 does not match scales float32\[1, 1\]",
        ),
        (
            {"a_blocks": weight.view(torch.uint8)},
            MXFP4,
            "a_blocks cannot be dequantized: its other half is missing",
        ),
        (
            {
                "a_blocks": torch.zeros(1, 2, 1, 16, dtype=torch.uint8),
                "a_scales": torch.zeros(1, 3, 1, dtype=torch.uint8),
            },
            MXFP4,
            r"blocks uint8\[1, 2, 1, 16\] do not match scales uint8\[1, 3, 1\]",
        ),
    ]
    cases += [
        (
            {"a.weight": weight.view(torch.uint8), "a.weight_scale_inv": scale},
            FP8,
            r"uint8\[128, 256\] in blocks",
        ),
        # one block more than there are rows for
        (
            {"a.weight": weight, "a.weight_scale_inv": scale.repeat(2, 1)},
            FP8,
            r"does not match scales float32\[2, 2\]",
        ),
    ]
    blocks, scales = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1)
    for wrong_blocks, wrong_scales in (
        (blocks, scales.to(torch.uint8)),
        (blocks.to(torch.uint8), scales),
        (blocks[0].to(torch.uint8), scales[0].to(torch.uint8)),
    ):
        cases += [
            ({"a_blocks": wrong_blocks, "a_scales": wrong_scales}, MXFP4, "do not match scales")
        ]
    for tensors, quantization, message in cases:
        with pytest.raises(ProblemsFound, match=message):
            dequantize_weights(tensors, quantization)


def test_the_folder_says_which_format_it_has(tmp_path: Path) -> None:
    assert find_hf_quantization(tmp_path) is None

    def say(written: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": written}))

    say({"quant_method": "fp8", "weight_block_size": [64, 32]})
    assert check_hf_quantization(tmp_path, is_quantized=True) == HFQuantization("fp8", (64, 32))
    say({"quant_method": "mxfp4", "modules_to_not_convert": []})
    assert find_hf_quantization(tmp_path) == MXFP4
    with pytest.raises(
        ProblemsFound, match=r"are quantized \(mxfp4\), but the recipe does not say so"
    ):
        check_hf_quantization(tmp_path, is_quantized=False)
    say(None)
    with pytest.raises(ProblemsFound, match="are not quantized"):
        check_hf_quantization(tmp_path, is_quantized=True)
    for wrong in (
        {"quant_method": "awq"},
        {},
        [],
        {"quant_method": "fp8", "weight_block_size": [128, "x"]},
    ):
        say(wrong)
        with pytest.raises(ProblemsFound):
            find_hf_quantization(tmp_path)


def test_a_packed_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    weight, scale = fp8_file(128, 128)
    safetensors.torch.save_file(
        {"a.weight": weight, "a.weight_scale_inv": scale}, tmp_path / "model.safetensors"
    )
    found = dequantize_weights(read_hf_folder(tmp_path), FP8)
    assert torch.equal(found["a.weight"], dequantize_fp8(weight, scale, (128, 128)))
