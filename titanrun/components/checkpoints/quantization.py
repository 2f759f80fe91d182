"""Which quantised format the weights of a Hugging Face folder have: its config.json says so. No torch here: `validate` asks too."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from titanrun.components.checkpoints.addresses import Place
from titanrun.config.problems import DataPath, ProblemsFound, fail
from titanrun.config.suggest import listing

CONFIG_FILE = "config.json"
KEY = "quantization_config"
SETTING: DataPath = ("checkpoint", "initial_load_in_hf_quantized")
# what DeepSeek-V3 was published with; a file may name another size
FP8_BLOCK = (128, 128)
Method = Literal["fp8", "mxfp4"]
METHODS: tuple[Method, ...] = ("fp8", "mxfp4")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are packed: `fp8` has one scale for a block of a matrix, `mxfp4` one for 32 values of a row of an expert's matrix.

    Args:
        method: the name in config.json.
        block: rows and columns of a block of fp8.
    """

    method: Method
    block: tuple[int, int] = FP8_BLOCK


def quantization_of(folder: Place) -> Quantization | None:
    """The format of the weights in `folder`; None where they are plain. Raises a problem `checkpoint` for one that is not known."""
    written = _written(folder / CONFIG_FILE)
    if written is None:
        return None
    method = written.get("quant_method")
    if method not in METHODS:
        message = (
            f"{folder / CONFIG_FILE} says that the weights are quantised as {json.dumps(method)}"
        )
        help = f"{listing(METHODS, last='and')} can be expanded; convert the others with transformers, or take the plain weights"
        raise fail("checkpoint", message, path=SETTING, help=help)
    block = written.get("weight_block_size") or FP8_BLOCK
    if method == "fp8" and not _is_block(block):
        raise fail(
            "checkpoint",
            f"{folder / CONFIG_FILE}: {KEY}.weight_block_size is {json.dumps(block)}, expected two whole numbers",
        )
    return Quantization(method, (block[0], block[1]) if method == "fp8" else FP8_BLOCK)


def agreed_quantization(folder: Place, *, is_quantized: bool) -> Quantization | None:
    """The format of the weights in `folder`. Raises a problem `checkpoint` where the recipe says otherwise than the folder.

    Args:
        folder: a Hugging Face folder.
        is_quantized: what the recipe says of it.
    """
    found = quantization_of(folder)
    if found is not None and not is_quantized:
        message = f"the weights in {folder} are quantised ({found.method}), and the recipe does not say so"
        raise fail(
            "checkpoint",
            message,
            path=SETTING,
            help="set checkpoint.initial_load_in_hf_quantized: true to expand them",
        )
    if found is None and is_quantized:
        message = f"the weights in {folder} are not quantised: its {CONFIG_FILE} has no {KEY}"
        raise fail(
            "checkpoint",
            message,
            path=SETTING,
            help="set checkpoint.initial_load_in_hf_quantized: false",
        )
    return found


def _written(path: Place) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fail("checkpoint", f"cannot read {path}: {error}") from error
    found = config.get(KEY) if isinstance(config, dict) else None
    if found is not None and not isinstance(found, dict):
        raise _no_mapping(path)
    return found


def _no_mapping(path: Place) -> ProblemsFound:
    return fail("checkpoint", f"{path}: {KEY} is no mapping")


def _is_block(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(size) is int and size > 0 for size in value)
    )
