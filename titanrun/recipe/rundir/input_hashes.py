"""Content hashes of the input files of a run: size, time, and a full or sampled digest.

A digest of every byte of a large corpus takes longer than many runs. Of a file above WHOLE_BYTES
only blocks spread over it are read, and `sampled` says so: a change between the blocks that keeps
the size shows up only in the modification time, or not at all.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from glob import has_magic
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import xxhash

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.components.data.spec.folder_files import iter_folder_files
from titanrun.config.base import iter_nested_configs
from titanrun.config.near_path import expand_braces
from titanrun.recipe.recipe import Recipe

WHOLE_BYTES = 16 * 1024**2
BLOCK_BYTES = 128 * 1024
BLOCKS = 32
# in a folder with more files, the rest is hashed by name and size only
MOST_READ = 1000
# for a folder with more files, run.json lists no digests of single files
MOST_NAMED = 50


def hash_input_files(run: Recipe) -> list[dict[str, Any]]:
    """Return path and content of every data, tokenizer and weight path in the recipe."""
    written = {
        run.model.hf_assets_path,
        run.checkpoint.initial_load_path,
        run.loss.teacher_path,
        None if run.rl is None else run.rl.teacher,
    }
    written |= {getattr(config, "path", None) for _, config in iter_nested_configs(run)}
    return [
        hash_input(name, Path(name))
        for name in sorted(path for path in written if path is not None)
    ]


def hash_input(name: str, place: Path) -> dict[str, Any]:
    """Return count, bytes, newest time and digest of the files at `place`.

    Return only the paths if there are no files.
    """
    if is_storage_path(name):
        return {"path": name, "absolute": name}
    entry: dict[str, Any] = {"path": name, "absolute": str(place.resolve())}
    places = [Path(one) for one in expand_braces(str(place))]
    files = sorted({file for one in places for file in iter_input_files(one)})
    if not files:
        return entry
    sizes = [file.stat().st_size for file in files]
    newest = max(file.stat().st_mtime for file in files)
    digests = [
        hash_file_content(file, size)
        for file, size in islice(zip(files, sizes, strict=True), MOST_READ)
    ]
    root = Path(os.path.commonpath([get_common_root(one) for one in places]))
    labels = [file.relative_to(root).as_posix() for file in files]
    whole = xxhash.xxh3_128()
    for text in [*map(repr, zip(labels, sizes, strict=True)), *digests]:
        whole.update(text.encode("utf-8", "surrogateescape"))
    is_sampled = len(files) > MOST_READ or any(size > WHOLE_BYTES for size in sizes)
    entry |= {
        "files": len(files),
        "bytes": sum(sizes),
        "modified": datetime.fromtimestamp(newest, UTC).isoformat(timespec="microseconds"),
    }
    entry |= {"xxh3_128": whole.hexdigest(), "sampled": is_sampled}
    if 1 < len(files) <= min(MOST_NAMED, MOST_READ):
        entry["each"] = dict(zip(labels, digests, strict=True))
    return entry


def iter_input_files(place: Path) -> Iterator[Path]:
    """Yield a file, all files below a folder, or those that match a pattern, sorted by name.

    Links in a folder are followed.
    """
    if place.is_file():
        yield place
    elif place.is_dir():
        found = iter_folder_files(place, lambda _: True)
        yield from sorted(path for path in found if path.is_file())
    elif has_magic(str(place)):
        anchor = Path(place.anchor)
        yield from sorted(
            path for path in anchor.glob(str(place.relative_to(anchor))) if path.is_file()
        )


def get_common_root(place: Path) -> Path:
    """Return the folder to which file labels are relative.

    It is `place` if that is a folder, else the parent of the file, or the folder that contains all
    matches of a pattern.
    """
    if place.is_dir():
        return place
    return Path(*takewhile(lambda part: not has_magic(part), place.parts[:-1]))


def hash_file_content(file: Path, size: int) -> str:
    """Hash every byte of a file, or sampled blocks of a large file."""
    found = xxhash.xxh3_128()
    with file.open("rb") as opened:
        for start, length in select_blocks(size):
            opened.seek(start)
            found.update(opened.read(length))
    return found.hexdigest()


def select_blocks(size: int) -> Sequence[tuple[int, int]]:
    """Return the offset and length of each block to read."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    last = size - BLOCK_BYTES
    return [(last * number // (BLOCKS - 1), BLOCK_BYTES) for number in range(BLOCKS)]
