"""Weight folders of transformers and diffusers: safetensors, one file or several shards."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from titanrun.components.checkpoints.spec.atomic_folder import (
    atomic_folder,
    delete_temporary_folders,
)
from titanrun.components.checkpoints.spec.storage_path import AnyPath, local_copy
from titanrun.components.checkpoints.spec.weight_files import (
    PICKLE_SUFFIXES,
    WEIGHT_FILE_STEMS,
)
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# transformers' own limit, in decimal gigabytes
SHARD_BYTES = 5 * 10**9
NO_METADATA: Mapping[str, str] = MappingProxyType({})


def read_hf_folder(folder: AnyPath) -> dict[str, Tensor]:
    """Return every tensor of a folder by its name there, on the CPU.

    Bytes are read when a tensor is used.

    Raises:
        ProblemsFound: A problem `checkpoint` if there is no folder, no safetensors file, or a file
            of the index is missing or damaged.
    """
    if not folder.is_dir():
        raise problem_error(
            "checkpoint",
            f"folder not found: {folder}",
            hint="download the model first, or correct the path",
        )
    for stem in WEIGHT_FILE_STEMS:
        if (folder / f"{stem}.safetensors.index.json").is_file():
            return _read_shards(folder, f"{stem}.safetensors.index.json")
        if (folder / f"{stem}.safetensors").is_file():
            return _read_file(folder / f"{stem}.safetensors")
    raise _no_weights_error(folder)


def write_hf_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    extra_files: Iterable[Path] = (),
    extra_texts: Mapping[str, bytes] | None = None,
    *,
    stem: str = WEIGHT_FILE_STEMS[0],
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] = NO_METADATA,
) -> None:
    """Write a folder for transformers or diffusers, atomically.

    Args:
        folder: New folder, which must not exist.
        tensors: Weights under transformers' names, on any device.
        config: Content of config.json.
        extra_files: Files to copy into the folder, such as the tokenizer's.
        extra_texts: Further files by name, such as generation_config.json.
        stem: One of WEIGHT_FILE_STEMS.
        shard_bytes: Size above which the weights are split into several files. A larger tensor has
            its own file.
        metadata: Metadata of each safetensors file.

    Raises:
        ProblemsFound: A problem `checkpoint` if `folder` exists.
    """
    contents: dict[str, bytes | Path] = {
        CONFIG_FILE: _encode_json(config),
        **{file.name: file for file in extra_files},
        **(extra_texts or {}),
    }
    write_safetensors_folder(
        folder, tensors, contents, stem=stem, shard_bytes=shard_bytes, metadata=metadata
    )


def write_safetensors_folder(
    folder: Path,
    tensors: Mapping[str, Tensor],
    extra_contents: Mapping[str, bytes | Path],
    *,
    stem: str = WEIGHT_FILE_STEMS[0],
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] = NO_METADATA,
) -> None:
    """Write a folder of safetensors and the files of `extra_contents`, atomically.

    Several safetensors files get an index.
    """
    if folder.parent.is_dir():
        delete_temporary_folders(folder.parent, re.compile(re.escape(folder.name)))
    with atomic_folder(folder) as temporary:
        for name, content in extra_contents.items():
            (temporary / name).write_bytes(
                content if isinstance(content, bytes) else content.read_bytes()
            )
        shards = split_names_into_shards(tensors, shard_bytes)
        numbers = (
            [""]
            if len(shards) == 1
            else [f"-{i:05}-of-{len(shards):05}" for i in range(1, len(shards) + 1)]
        )
        files = [f"{stem}{number}.safetensors" for number in numbers]
        for file_name, shard in zip(files, shards, strict=True):
            # from_pretrained rejects a file without the framework that wrote it
            safetensors.torch.save_file(
                _copy_to_separate_memory(tensors, shard),
                temporary / file_name,
                metadata={**metadata, "format": "pt"},
            )
        if len(shards) > 1:
            weight_map = {
                name: file_name
                for file_name, shard in zip(files, shards, strict=True)
                for name in shard
            }
            total = sum(tensor.nbytes for tensor in tensors.values())
            (temporary / f"{stem}.safetensors.index.json").write_bytes(
                _encode_json({"metadata": {"total_size": total}, "weight_map": weight_map})
            )


def split_names_into_shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Split the names in order into files of at most `shard_bytes`, at least one file."""
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        if shards[-1] and used + tensor.nbytes > shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += tensor.nbytes
    return shards


def _read_shards(folder: AnyPath, index_file: str) -> dict[str, Tensor]:
    weight_map = _read_weight_map(folder / index_file)
    files = {name: _read_file(folder / name) for name in sorted(set(weight_map.values()))}
    for tensor_name, file_name in weight_map.items():
        if tensor_name not in files[file_name]:
            raise problem_error(
                "checkpoint",
                f"{folder / file_name} does not hold {tensor_name}, although {index_file} says so",
            )
    return {
        tensor_name: files[file_name][tensor_name] for tensor_name, file_name in weight_map.items()
    }


def _read_weight_map(path: AnyPath) -> dict[str, str]:
    try:
        index = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable_file_error(path, error) from error
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise problem_error("checkpoint", f"{path} is damaged: it has no weight_map")
    for file_name in weight_map.values():
        if (
            not isinstance(file_name, str)
            or Path(file_name).name != file_name
            or not file_name.endswith(".safetensors")
        ):
            raise problem_error(
                "checkpoint",
                f"{path} names {file_name!r}, which is not a safetensors file of that folder",
            )
    return weight_map


def _read_file(path: AnyPath) -> dict[str, Tensor]:
    try:
        with (
            local_copy(path) as copy,
            safetensors.safe_open(copy, framework="pt", device="cpu") as file,
        ):
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise _unreadable_file_error(path, error) from error


def _no_weights_error(folder: AnyPath) -> ProblemsFound:
    pickles = sorted(file.name for file in folder.iterdir() if file.name.endswith(PICKLE_SUFFIXES))
    if pickles:
        return problem_error(
            "checkpoint",
            f"{folder} holds its weights as a pickle ({pickles[0]}), "
            "which can run any code when it is read",
            hint="convert it to safetensors if you trust it: "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
        )
    return problem_error(
        "checkpoint",
        f"{folder} holds neither {SINGLE_FILE} nor {INDEX_FILE}",
        hint="name the folder that holds the weights",
    )


def _unreadable_file_error(path: AnyPath, error: Exception) -> ProblemsFound:
    return problem_error("checkpoint", f"cannot read {path}: {error}")


def _copy_to_separate_memory(
    tensors: Mapping[str, Tensor], names: Iterable[str]
) -> dict[str, Tensor]:
    """Return those tensors on the CPU without shared memory, as the file format requires."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name in names:
        tensor = tensors[name].detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if address in taken else tensor
        taken.add(address)
    return apart


def _encode_json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, allow_nan=False, indent=2) + "\n").encode()
