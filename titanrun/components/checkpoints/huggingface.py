"""Folders of weights as transformers and diffusers read and write them: safetensors, in one file or in several with an index."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.addresses import Place, local_copy
from titanrun.components.checkpoints.whole_folder import sweep, written_whole
from titanrun.config.problems import ProblemsFound, fail

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
# what the files of weights are called before their ending: by transformers, by diffusers
STEMS = ("model", "diffusion_pytorch_model")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

# transformers' own limit, decimal gigabytes
SHARD_BYTES = 5 * 10**9
NOTHING: Mapping[str, str] = MappingProxyType({})


def read_folder(folder: Place) -> dict[str, Tensor]:
    """Every tensor of a folder by its name there, on the CPU; bytes are read when a tensor is used.

    Raises a problem `checkpoint` where there is no folder, no safetensors, or what the index names is missing or damaged.
    """
    if not folder.is_dir():
        raise fail(
            "checkpoint",
            f"there is no folder {folder}",
            help="download the model first, or correct the path",
        )
    for stem in STEMS:
        if (folder / f"{stem}.safetensors.index.json").is_file():
            return _read_shards(folder, f"{stem}.safetensors.index.json")
        if (folder / f"{stem}.safetensors").is_file():
            return _read_file(folder / f"{stem}.safetensors")
    raise _no_weights(folder)


def write_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    extra_files: Iterable[Path] = (),
    extra_texts: Mapping[str, bytes] | None = None,
    *,
    stem: str = STEMS[0],
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] = NOTHING,
) -> None:
    """Write a folder that transformers, or diffusers, opens; it is there whole or not at all.

    Args:
        folder: where; must not exist.
        tensors: weights under transformers' names, on any device.
        config: the content of config.json.
        extra_files: files to copy beside it, such as the tokenizer's.
        extra_texts: further files by name, such as generation_config.json.
        stem: one of STEMS.
        shard_bytes: size above which the weights are split into several files; a larger tensor has a file of its own.
        metadata: what each file says of its tensors beside their shapes.

    Raises a problem `checkpoint` where `folder` exists.
    """
    beside = {
        CONFIG_FILE: _json(config),
        **{file.name: file for file in extra_files},
        **(extra_texts or {}),
    }
    write_weights(folder, tensors, beside, stem=stem, shard_bytes=shard_bytes, metadata=metadata)


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    beside: Mapping[str, bytes | Path],
    *,
    stem: str = STEMS[0],
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] = NOTHING,
) -> None:
    """Write a folder of safetensors with an index where they are several, and the files of `beside`; there whole or not at all."""
    if folder.parent.is_dir():
        sweep(folder.parent, re.compile(re.escape(folder.name)))
    with written_whole(folder) as temporary:
        for name, content in beside.items():
            (temporary / name).write_bytes(
                content if isinstance(content, bytes) else content.read_bytes()
            )
        shards = split(tensors, shard_bytes)
        numbers = (
            [""]
            if len(shards) == 1
            else [f"-{i:05}-of-{len(shards):05}" for i in range(1, len(shards) + 1)]
        )
        files = [f"{stem}{number}.safetensors" for number in numbers]
        for file_name, shard in zip(files, shards, strict=True):
            # from_pretrained refuses a file that does not say which framework wrote it
            safetensors.torch.save_file(
                _apart(tensors, shard), temporary / file_name, metadata={**metadata, "format": "pt"}
            )
        if len(shards) > 1:
            weight_map = {
                name: file_name
                for file_name, shard in zip(files, shards, strict=True)
                for name in shard
            }
            total = sum(tensor.nbytes for tensor in tensors.values())
            (temporary / f"{stem}.safetensors.index.json").write_bytes(
                _json({"metadata": {"total_size": total}, "weight_map": weight_map})
            )


def split(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """The names dealt in order to files of at most `shard_bytes`; at least one file."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        if shards[-1] and used + tensor.nbytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += tensor.nbytes
    return shards


def _read_shards(folder: Place, index_file: str) -> dict[str, Tensor]:
    weight_map = _read_weight_map(folder / index_file)
    files = {name: _read_file(folder / name) for name in sorted(set(weight_map.values()))}
    for tensor_name, file_name in weight_map.items():
        if tensor_name not in files[file_name]:
            raise fail(
                "checkpoint",
                f"{folder / file_name} does not hold {tensor_name}, which {index_file} says it does",
            )
    return {
        tensor_name: files[file_name][tensor_name] for tensor_name, file_name in weight_map.items()
    }


def _read_weight_map(path: Place) -> dict[str, str]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise fail("checkpoint", f"{path} is damaged: it has no weight_map")
    for file_name in weight_map.values():
        if (
            not isinstance(file_name, str)
            or Path(file_name).name != file_name
            or not file_name.endswith(".safetensors")
        ):
            raise fail(
                "checkpoint",
                f"{path} names {file_name!r}, which is no safetensors file of that folder",
            )
    return weight_map


def _read_file(path: Place) -> dict[str, Tensor]:
    try:
        with (
            local_copy(path) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _no_weights(folder: Place) -> ProblemsFound:
    pickles = sorted(file.name for file in folder.iterdir() if file.name.endswith(PICKLES))
    if pickles:
        return fail(
            "checkpoint",
            f"{folder} holds its weights as a pickle ({pickles[0]}), which can run any code when it is read",
            help="convert it to safetensors: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...) where you trust it",
        )
    return fail(
        "checkpoint",
        f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}",
        help="name the folder that holds the weights",
    )


def _damaged(path: Place, error: Exception) -> ProblemsFound:
    return fail("checkpoint", f"cannot read {path}: {error}")


def _apart(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Those tensors on the CPU, no two of them in the same memory, as the file format asks."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if address in taken else tensor
        taken.add(address)
    return apart


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, allow_nan=False, indent=2) + "\n").encode()
