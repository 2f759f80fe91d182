"""Files of token ids with the ends of documents, as datatrove and Megatron write them."""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.config.problems import ProblemsFound, problem_error

MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
MEGATRON_HEAD = struct.Struct("<9sQBQQ")
"""Magic bytes, version, code of the type, number of sequences, length of the document index."""
MEGATRON_VERSION = 1
# codes 6 and 7 are floating-point types
MEGATRON_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
DATATROVE_TYPES = {"2": "<u2", "4": "<u4"}


@dataclass(frozen=True, slots=True)
class TokenizedFile:
    """Token ids of consecutive documents, mapped read-only.

    Args:
        path: File of the ids.
        index_path: File of the documents.
        ids: The ids, in one dimension.
        ends: End of each document, in tokens.
        tokenizer: Name of the tokenizer that the files give, or None.
    """

    path: Path
    index_path: Path
    ids: NDArray[np.integer]
    ends: NDArray[np.int64]
    tokenizer: str | None = None


def open_datatrove_file(path: Path) -> TokenizedFile:
    """Open a .ds file with its .ds.index and .ds.metadata.

    Format: https://github.com/huggingface/datatrove/blob/main/src/datatrove/pipeline/tokens/tokenizer.py

    Raises:
        ProblemsFound: A data problem if they do not fit together.
    """
    index_path, metadata = (Path(f"{path}.{suffix}") for suffix in ("index", "metadata"))
    lines = read_neighbour(metadata).decode(errors="replace").splitlines()
    name, _, width = lines[0].rpartition("|") if lines else ("", "", "")
    if width not in DATATROVE_TYPES:
        raise file_damage_error(metadata, "its first line does not end with |2 or |4")
    ids = map_integers(path, DATATROVE_TYPES[width])
    counted = lines[1] if len(lines) > 1 else ""
    if counted != str(len(ids)):
        raise file_damage_error(
            path, f"it has {len(ids):,} tokens, {metadata.name} says {counted or 'nothing'}"
        )
    ends = map_integers(index_path, "<u8").astype(np.int64)
    check_document_ends(index_path, ends, len(ids))
    return TokenizedFile(path, index_path, ids, ends, tokenizer=name)


def open_megatron_file(path: Path) -> TokenizedFile:
    """Open a .bin file of Megatron's IndexedDataset with its .idx.

    Format: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py

    Raises:
        ProblemsFound: A data problem if they do not fit together.
    """
    index_path = path.with_suffix(".idx")
    content = read_neighbour(index_path)
    if len(content) < MEGATRON_HEAD.size:
        raise file_damage_error(index_path, "it is too short")
    magic, version, code, sequences, entries = MEGATRON_HEAD.unpack_from(content)
    if magic != MEGATRON_MAGIC or version != MEGATRON_VERSION:
        raise file_damage_error(index_path, "it is not an index of Megatron, version 1")
    if code not in MEGATRON_TYPES:
        raise file_damage_error(index_path, f"its ids have the type {code}, not an integer")
    needed = MEGATRON_HEAD.size + 12 * sequences + 8 * entries
    if len(content) < needed:
        raise file_damage_error(index_path, f"it has {len(content):,} bytes of {needed:,}")
    ids = map_integers(path, MEGATRON_TYPES[code])
    lengths = np.frombuffer(content, "<i4", sequences, MEGATRON_HEAD.size)
    pointers = np.frombuffer(content, "<i8", sequences, MEGATRON_HEAD.size + 4 * sequences)
    documents = np.frombuffer(content, "<i8", entries, MEGATRON_HEAD.size + 12 * sequences)
    ends = np.cumsum(lengths, dtype=np.int64)
    if not np.array_equal(pointers, (ends - lengths) * ids.itemsize):
        raise file_damage_error(index_path, "its sequences are not stored one after another")
    # the first entry is 0; each further one is the number of sequences up to a document's end
    if entries < 1 or documents[0] != 0 or (documents > sequences).any() or (documents < 0).any():
        raise file_damage_error(index_path, "its documents are not those of its sequences")
    ends = np.concatenate([[0], ends])[documents[1:]]
    check_document_ends(index_path, ends, len(ids))
    return TokenizedFile(path, index_path, ids, ends)


OPENERS: Mapping[str, tuple[str, Callable[[Path], TokenizedFile]]] = {
    "datatrove": (".ds", open_datatrove_file),
    "megatron": (".bin", open_megatron_file),
}
"""Suffix of the files of ids, and the function that opens one, by layout."""


def read_neighbour(path: Path) -> bytes:
    """Return the bytes of a file that belongs to a file of ids."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise problem_error(
            "data",
            f"'{path}' cannot be read: {error.strerror or error}",
            path=("path",),
            hint="it is written beside the file of ids; copy both",
        ) from None


def map_integers(path: Path, dtype: str) -> NDArray[np.integer]:
    """Map the integers of a file without a header."""
    width = np.dtype(dtype).itemsize
    try:
        size = path.stat().st_size
        if size == 0:
            return np.zeros(0, dtype)
        if size % width == 0:
            # a plain array: indexing a memmap takes three times as long
            return np.asarray(np.memmap(path, dtype, mode="r"))
    except OSError as error:
        raise problem_error(
            "data", f"'{path}' cannot be read: {error.strerror or error}", path=("path",)
        ) from None
    raise file_damage_error(path, f"it has {size:,} bytes, not a multiple of {width}")


def check_document_ends(path: Path, ends: NDArray[np.int64], num_tokens: int) -> None:
    """Raise a data problem unless documents follow each other to the end of the ids."""
    last = int(ends[-1]) if len(ends) else 0
    if last != num_tokens or (np.diff(ends, prepend=0) < 0).any():
        raise file_damage_error(
            path, f"its documents end at token {last:,}, and there are {num_tokens:,}"
        )


def file_damage_error(path: Path, reason: str) -> ProblemsFound:
    """Return the data problem of a file that is not what it should be."""
    message = f"'{path}' is damaged or of another layout: {reason}"
    return problem_error("data", message, path=("path",), hint="copy or write it again")
