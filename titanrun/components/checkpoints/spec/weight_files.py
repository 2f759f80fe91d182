"""Safetensors files of a Hugging Face folder, whether they are there and whole. Torch-free."""

from collections.abc import Iterator
from pathlib import Path

from titanrun.config.json_text import parse_json

# stems of the names of weight files: of transformers, of diffusers
WEIGHT_FILE_STEMS = ("model", "diffusion_pytorch_model")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""Longest header that the library reads."""


def find_weight_faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the weight files of a folder, without reading the weights.

    The run tells of weights in pickles how to convert them.
    """
    files = list_weight_files(folder)
    if not files and not any(file.suffix in PICKLE_SUFFIXES for file in folder.iterdir()):
        yield f"'{folder}' has no {WEIGHT_FILE_STEMS[0]}.safetensors, nor an index of several"
    for file in files:
        fault = find_file_fault(file)
        if fault is not None:
            yield fault


def list_weight_files(folder: Path) -> list[Path]:
    """Return the files that a folder has, or that its index names."""
    for stem in WEIGHT_FILE_STEMS:
        index, single = (folder / f"{stem}.safetensors{end}" for end in (".index.json", ""))
        if index.is_file():
            return [folder / name for name in read_indexed_names(index)] or [index]
        if single.is_file():
            return [single]
    return []


def read_indexed_names(index: Path) -> list[str]:
    """Return the names of the files in an index, sorted; none if it cannot be read."""
    try:
        found = parse_json(index.read_text(encoding="utf-8"))["weight_map"].values()
        return sorted({name for name in found if Path(name).name == name})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def find_file_fault(file: Path) -> str | None:
    """Return what is wrong with a safetensors file, by its header and its size."""
    if not file.is_file():
        return f"'{file}' is missing, although the index beside it names it"
    try:
        needed, size = read_needed_bytes(file), file.stat().st_size
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"'{file}' is no safetensors file, or its beginning is damaged"
    if size == needed:
        return None
    how = "cut" if size < needed else "longer than its header says"
    return f"'{file}' is {how}: it has {size:,} bytes of {needed:,}"


def read_needed_bytes(file: Path) -> int:
    """Return the size of a whole file with this header.

    Raises:
        ValueError: There is no header.
    """
    with file.open("rb") as content:
        length = int.from_bytes(content.read(LENGTH_BYTES), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            raise ValueError("no length of a header")
        header = parse_json(content.read(length).decode())
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return LENGTH_BYTES + length + max(ends, default=0)
