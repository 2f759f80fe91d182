"""Quantization format of the weights of a Hugging Face folder, from its config.json.

Torch-free: `validate` uses it, too.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from titanrun.components.checkpoints.spec.storage_path import AnyPath
from titanrun.config.problems import DataPath, ProblemsFound, problem_error
from titanrun.config.suggest import format_word_list

CONFIG_FILE = "config.json"
KEY = "quantization_config"
SETTING: DataPath = ("checkpoint", "initial_load_in_hf_quantized")
# block size of the published DeepSeek-V3; a file may name another size
FP8_BLOCK = (128, 128)
QuantMethod = Literal["fp8", "mxfp4"]
METHODS: tuple[QuantMethod, ...] = ("fp8", "mxfp4")


@dataclass(frozen=True, slots=True)
class HFQuantization:
    """Quantization of weights.

    `fp8` has one scale per block of a matrix, `mxfp4` one per 32 values of a row of an expert's
    matrix.

    Args:
        method: Name in config.json.
        block: Rows and columns of a block of fp8.
    """

    method: QuantMethod
    block: tuple[int, int] = FP8_BLOCK


def find_hf_quantization(folder: AnyPath) -> HFQuantization | None:
    """Return the format of the weights in `folder`, None if they are not quantized.

    Raises:
        ProblemsFound: A problem `checkpoint` for an unknown format.
    """
    written = _read_quantization_config(folder / CONFIG_FILE)
    if written is None:
        return None
    method = written.get("quant_method")
    if method not in METHODS:
        message = f"{folder / CONFIG_FILE}: unsupported quantization method {json.dumps(method)}"
        methods = format_word_list(METHODS, conjunction="and")
        hint = (
            f"{methods} can be dequantized; convert other weights with transformers, "
            "or use weights that are not quantized"
        )
        raise problem_error("checkpoint", message, path=SETTING, hint=hint)
    block = written.get("weight_block_size") or FP8_BLOCK
    if method == "fp8" and not _is_block(block):
        raise problem_error(
            "checkpoint",
            f"{folder / CONFIG_FILE}: {KEY}.weight_block_size is {json.dumps(block)}, "
            "expected two whole numbers",
        )
    return HFQuantization(method, (block[0], block[1]) if method == "fp8" else FP8_BLOCK)


def check_hf_quantization(folder: AnyPath, *, is_quantized: bool) -> HFQuantization | None:
    """Return the format of the weights in `folder`; check it against the recipe.

    Args:
        folder: Hugging Face folder.
        is_quantized: Value in the recipe.

    Raises:
        ProblemsFound: A problem `checkpoint` if recipe and folder disagree.
    """
    found = find_hf_quantization(folder)
    if found is not None and not is_quantized:
        message = (
            f"the weights in {folder} are quantized ({found.method}), "
            "but the recipe does not say so"
        )
        raise problem_error(
            "checkpoint",
            message,
            path=SETTING,
            hint="set checkpoint.initial_load_in_hf_quantized: true to dequantize them",
        )
    if found is None and is_quantized:
        message = f"the weights in {folder} are not quantized: its {CONFIG_FILE} has no {KEY}"
        raise problem_error(
            "checkpoint",
            message,
            path=SETTING,
            hint="set checkpoint.initial_load_in_hf_quantized: false",
        )
    return found


def _read_quantization_config(path: AnyPath) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise problem_error("checkpoint", f"cannot read {path}: {error}") from error
    found = config.get(KEY) if isinstance(config, dict) else None
    if found is not None and not isinstance(found, dict):
        raise _not_a_mapping_error(path)
    return found


def _not_a_mapping_error(path: AnyPath) -> ProblemsFound:
    return problem_error("checkpoint", f"{path}: {KEY} is not a mapping")


def _is_block(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(size) is int and size > 0 for size in value)
    )
