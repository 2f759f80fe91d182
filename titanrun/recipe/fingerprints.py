"""What the files that a run reads hold, told apart cheaply: size, time, and a digest of all or of sampled bytes.

A digest of every byte of a large corpus takes longer than many runs. Of a file above WHOLE_BYTES only blocks spread over it are read,
and `sampled` says so: a change between them that keeps the size shows as another time, or not at all.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from glob import has_magic
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import xxhash

from titanrun.components.checkpoints.addresses import is_address
from titanrun.config.base import nested
from titanrun.recipe.recipe import Recipe

WHOLE_BYTES = 16 * 1024**2
BLOCK_BYTES = 128 * 1024
BLOCKS = 32
# of a folder with more files the rest counts by name and size
MOST_READ = 1000
# of a folder with more files the run's record names none
MOST_NAMED = 50


def input_files(run: Recipe) -> list[dict[str, Any]]:
    """Every file and folder that the recipe names (data, tokenizers, weights), with its absolute path and what is in it."""
    written = {run.model.hf_assets_path, run.checkpoint.initial_load_path}
    written |= {getattr(config, "path", None) for _, config in nested(run)}
    return [
        fingerprint(name, Path(name))
        for name in sorted(path for path in written if path is not None)
    ]


def fingerprint(name: str, place: Path) -> dict[str, Any]:
    """What is at `place`: count, bytes, newest time and digest of its files; only the paths where there is none."""
    if is_address(name):
        return {"path": name, "absolute": name}
    entry: dict[str, Any] = {"path": name, "absolute": str(place.resolve())}
    files = list(files_at(place))
    if not files:
        return entry
    sizes = [file.stat().st_size for file in files]
    newest = max(file.stat().st_mtime for file in files)
    digests = [
        digest(file, size) for file, size in islice(zip(files, sizes, strict=True), MOST_READ)
    ]
    root = root_of(place)
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


def files_at(place: Path) -> Iterator[Path]:
    """A file itself, all files below a folder, or those that a pattern names; in the order of their names."""
    if place.is_file():
        yield place
    elif place.is_dir():
        yield from sorted(path for path in place.rglob("*") if path.is_file())
    elif has_magic(str(place)):
        anchor = Path(place.anchor)
        yield from sorted(
            path for path in anchor.glob(str(place.relative_to(anchor))) if path.is_file()
        )


def root_of(place: Path) -> Path:
    """The folder that files are named from: the one that is named, else the one that holds the file, or all that a pattern may name."""
    if place.is_dir():
        return place
    return Path(*takewhile(lambda part: not has_magic(part), place.parts[:-1]))


def digest(file: Path, size: int) -> str:
    """Of every byte, or of blocks from the first to the last of a large file."""
    found = xxhash.xxh3_128()
    with file.open("rb") as opened:
        for start, length in blocks(size):
            opened.seek(start)
            found.update(opened.read(length))
    return found.hexdigest()


def blocks(size: int) -> Sequence[tuple[int, int]]:
    """Where to read, and how much."""
    if size <= WHOLE_BYTES:
        return [(0, size)]
    last = size - BLOCK_BYTES
    return [(last * number // (BLOCKS - 1), BLOCK_BYTES) for number in range(BLOCKS)]
