"""Text tokenised once: the token ids of all documents in one .npy file, with a record of what they were made from."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.parts import Part, parts
from titanrun.components.data.source_files import SourceFile, describe, is_unchanged
from titanrun.components.data.token_file import TokenSummary, map_tokens, summarise
from titanrun.components.data.token_writer import TokenWriter, sync_folder
from titanrun.components.data.watched_file import WatchedFile, state_of
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

log = logging.getLogger(__name__)

FORMAT = 2
READER = "titanrun.components.data.text_files"
"""Imported only when an index is built, since it takes more than a second to import."""
ENCODE_CHARACTERS = 2**20
"""Characters of text that are tokenised at a time, all processors sharing them."""


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """What an index was made from and what it holds; stands beside it as JSON."""

    format: int
    tokenizer: str
    settings: str
    files: tuple[SourceFile, ...]
    documents: int
    tokens: int
    tokens_file: str
    size: int
    digest: str
    max_token_id: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds of its files.

    `settings`: all that the tokens depend on beside the files and the tokenizer, whose fingerprint is `tokenizer`. `write` appends
    the tokens of files, each below `bound`, with a folder for scratch, and says how many documents there were.
    """

    tokenizer: str
    settings: str
    bound: int
    write: Callable[[Sequence[Path], TokenWriter, Path], int]


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """The tokens of all documents, one after the other: ids, each document's with its BOS and EOS, or what else its `Contents` writes."""

    tokens: NDArray[np.integer]
    record: IndexRecord
    path: Path

    @property
    def summary(self) -> TokenSummary:
        """What was seen of the ids when the index was built."""
        return TokenSummary(self.record.digest, self.record.max_token_id)

    def watched(self) -> WatchedFile:
        """The file of the ids, which shall stay as it is now."""
        return WatchedFile(self.path, state=state_of(self.path), digest=self.record.digest)


def open_index(files: Sequence[Path], *, source: str, column: str, tokenizer: Tokenizer, cache_folder: Path) -> TokenIndex:
    """The index of the documents in one column of `files`; see `open_contents`."""
    contents = Contents(tokenizer.fingerprint, column, tokenizer.vocab_size, partial(write_column, column, tokenizer))
    return open_contents(files, source=source, contents=contents, cache_folder=cache_folder)


def open_contents(files: Sequence[Path], *, source: str, contents: Contents, cache_folder: Path) -> TokenIndex:
    """The index of `files`, built in `cache_folder` unless one made from the same bytes in the same way is there.

    `source` is the path that the recipe names; one index is kept for each source, settings and tokenizer.
    """
    cache_folder.mkdir(parents=True, exist_ok=True)
    identity = hashlib.sha256(json.dumps([FORMAT, source, contents.settings, contents.tokenizer]).encode()).hexdigest()[:16]
    record_path = cache_folder / f"{identity}.json"
    old = read_record(record_path)
    described = tuple(describe(files, {file.path: file for file in old.files} if old else {}))
    if old is not None and is_current(old, described, cache_folder):
        if old.files != described:
            write_record(record_path, replace(old, files=described))
        return TokenIndex(map_tokens(cache_folder / old.tokens_file), old, cache_folder / old.tokens_file)
    tokens_path = cache_folder / f"{identity}-{contents_hash(described)}.npy"
    log.info("tokenising %d files of '%s' into %s", len(files), source, tokens_path)
    record = build(described, source=source, contents=contents, tokens_path=tokens_path)
    write_record(record_path, record)
    if old is not None and old.tokens_file != record.tokens_file:
        (cache_folder / old.tokens_file).unlink(missing_ok=True)
    return TokenIndex(map_tokens(tokens_path), record, tokens_path)


def is_current(record: IndexRecord, described: Sequence[SourceFile], cache_folder: Path) -> bool:
    """Whether an index was made from exactly these bytes and is still there whole."""
    if len(record.files) != len(described) or not all(map(SourceFile.same_content, record.files, described)):
        return False
    tokens_path = cache_folder / record.tokens_file
    return tokens_path.is_file() and tokens_path.stat().st_size == record.size


def contents_hash(described: Sequence[SourceFile]) -> str:
    """Hash of the files' bytes, so that two processes that build the same index write the same file."""
    return hashlib.sha256("".join(file.sha256 for file in described).encode()).hexdigest()[:16]


def build(described: Sequence[SourceFile], *, source: str, contents: Contents, tokens_path: Path) -> IndexRecord:
    """Tokenise the files into `tokens_path`. Nothing stands under that name before it is complete."""
    temporary = tokens_path.with_name(f".{tokens_path.name}.tmp-{os.getpid()}")
    scratch = tokens_path.with_name(f".{tokens_path.stem}.datasets-{os.getpid()}")
    paths = [Path(file.path) for file in described]
    try:
        with temporary.open("wb") as file:
            writer = TokenWriter(file, vocab_size=contents.bound)
            document_count = contents.write(paths, writer, scratch)
            writer.finish()
        check_documents(document_count, source)
        check_unchanged(described)
        summary = summarise(map_tokens(temporary), source=source)
        temporary.replace(tokens_path)
        sync_folder(tokens_path.parent)
    finally:
        temporary.unlink(missing_ok=True)
        remove_scratch(scratch)
    return IndexRecord(
        FORMAT,
        contents.tokenizer,
        contents.settings,
        tuple(described),
        document_count,
        writer.count,
        tokens_path.name,
        tokens_path.stat().st_size,
        summary.digest,
        summary.max_token_id,
    )


def write_column(column: str, tokenizer: Tokenizer, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
    """Write the documents in one column of files; returns how many there were."""
    return write_documents(import_module(READER).read_documents(files, column=column, scratch=scratch), tokenizer, writer)


def write_documents(documents: Iterable[Iterable[str]], tokenizer: Tokenizer, writer: TokenWriter) -> int:
    """Write BOS, ids and EOS of every document; returns how many there were."""
    before = tokenizer.encode("", bos=True, eos=False)
    after = tokenizer.encode("", bos=False, eos=True)
    count = 0
    for batch in batches(chain.from_iterable(parts(document, tokenizer) for document in documents)):
        for part, ids in zip(batch, tokenizer.encode_batch([part.text for part in batch], bos=False, eos=False), strict=True):
            writer.write([*(before if part.is_first else ()), *ids, *(after if part.is_last else ())])
            count += part.is_last
        sign_of_life()
    return count


def batches(stream: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts together that are worth one call of the tokenizer."""
    batch: list[Part] = []
    size = 0
    for part in stream:
        batch.append(part)
        # the share of an empty document, so that a batch of them ends too
        size += len(part.text) + 64
        if size >= ENCODE_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def check_documents(count: int, source: str) -> None:
    """Data without a document cannot be trained on."""
    if count == 0:
        raise fail("data", f"'{source}' holds no documents", path=("path",), help="the files are empty: name other ones")


def check_unchanged(described: Sequence[SourceFile]) -> None:
    """The index must hold what the hashes tell of."""
    for file in described:
        if not is_unchanged(file):
            raise fail("data", f"'{file.path}' changed while it was read", path=("path",), help="start again when it is complete")


def remove_scratch(scratch: Path) -> None:
    """Remove what the datasets library left: lock files, and folders of its own."""
    if scratch.is_dir():
        for entry in scratch.iterdir():
            entry.unlink()
        scratch.rmdir()


def read_record(path: Path) -> IndexRecord | None:
    """The record of an index; None where there is none or it is of another format."""
    try:
        data = json.loads(path.read_bytes())
        files = tuple(SourceFile(**entry) for entry in data.pop("files"))
        record = IndexRecord(files=files, **data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if record.format == FORMAT else None


def write_record(path: Path, record: IndexRecord) -> None:
    """Write the record in one step, after which the index counts."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(asdict(record), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)
