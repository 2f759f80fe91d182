"""Text tokenised once: the token ids of all documents in one .npy file, with a record of what they were made from."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.cache import (
    FORMAT,
    IndexRecord,
    index_key,
    known_path,
    one_writer,
    read_known,
    record_path,
    tokens_path,
    whole_index,
    write_known,
    write_record,
)
from titanrun.components.data.coded import CODES, coded_document
from titanrun.components.data.config import DocumentsConfig, TextDatasetConfig
from titanrun.components.data.parts import Part, parts
from titanrun.components.data.source_files import SourceFile, describe, is_unchanged
from titanrun.components.data.token_file import TokenSummary, map_tokens, summarise
from titanrun.components.data.token_writer import TokenWriter, sync_folder
from titanrun.components.data.watched_file import WatchedFile, state_of
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.base import dump
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

log = logging.getLogger(__name__)

READER = "titanrun.components.data.text_files"
"""Imported only when an index is built, since it takes more than a second to import."""
READ_SETTINGS = (
    "column",
    "format",
    "filters",
    "max_documents",
    "add_bos",
    "add_eos",
    "bad_records",
)
ENCODE_CHARACTERS = 2**20
"""Characters of text that are tokenised at a time, all processors sharing them."""


@dataclass(frozen=True, slots=True)
class Written:
    """How many documents an index holds, how many no filter let through, and how many records could not be read."""

    documents: int
    left_out: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index holds of its files.

    `settings`: all that the tokens depend on beside the files and the tokenizer, whose fingerprint is `tokenizer`. `write` appends
    the tokens of files, each below `bound`, with a folder for scratch, and says how many documents there were.
    """

    tokenizer: str
    settings: str
    bound: int
    write: Callable[[Sequence[Path], TokenWriter, Path], Written]


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


def open_index(
    files: Sequence[Path], *, source: str, column: str, tokenizer: Tokenizer, cache_folder: Path
) -> TokenIndex:
    """The index of the documents in one column of `files`; see `open_contents`."""
    config = TextDatasetConfig(path=source, column=column)
    return open_documents(
        config, files, source=source, tokenizer=tokenizer, cache_folder=cache_folder
    )


def open_documents(
    config: DocumentsConfig,
    files: Sequence[Path],
    *,
    source: str,
    tokenizer: Tokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """The index of the documents that a dataset reads out of `files`, coded where its rows tell documents apart."""
    bound = tokenizer.vocab_size * (CODES if config.restarts_positions else 1)
    contents = Contents(
        tokenizer.fingerprint,
        document_settings(config),
        bound,
        partial(write_files, config, tokenizer),
    )
    return open_contents(files, source=source, contents=contents, cache_folder=cache_folder)


def document_settings(config: DocumentsConfig) -> str:
    """All in a dataset that the tokens of its documents depend on."""
    read = {name: value for name, value in dump(config).items() if name in READ_SETTINGS}
    return json.dumps(["documents", read, config.restarts_positions])


def open_pinned(
    config: DocumentsConfig,
    records: Callable[[Path], Iterable[tuple[str, Any]]],
    *,
    source: str,
    pinned: Sequence[str],
    tokenizer: Tokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """The index of the documents in records that never change: `pinned` says which they are. They are asked for only where they must be
    read, with a folder for scratch."""

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> Written:
        return write_read(
            config, tokenizer, writer, lambda reader: reader.of_records(records(scratch))
        )

    bound = tokenizer.vocab_size * (CODES if config.restarts_positions else 1)
    contents = Contents(tokenizer.fingerprint, document_settings(config), bound, write)
    return open_described((), pinned, source=source, contents=contents, cache_folder=cache_folder)


def open_contents(
    files: Sequence[Path], *, source: str, contents: Contents, cache_folder: Path
) -> TokenIndex:
    """The index of `files`, built in `cache_folder` unless one made from the same bytes in the same way is there.

    `source` is the path that the recipe names. Several processes may do this at once.
    """
    known_file = known_path(cache_folder, source)
    known = read_known(known_file)
    described = tuple(describe(files, known))
    index = open_described(
        described,
        [file.sha256 for file in described],
        source=source,
        contents=contents,
        cache_folder=cache_folder,
    )
    if tuple(known.values()) != described:
        write_known(known_file, source, described)
    return index


def open_described(
    described: Sequence[SourceFile],
    made_of: Sequence[str],
    *,
    source: str,
    contents: Contents,
    cache_folder: Path,
) -> TokenIndex:
    """The index of what `made_of` names by content, of which `described` are files."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    key = index_key(contents.settings, contents.tokenizer, made_of)
    record = whole_index(cache_folder, key)
    if record is None:
        with one_writer(cache_folder, key, on_wait=sign_of_life):
            record = whole_index(cache_folder, key) or build(
                described, source=source, contents=contents, cache_folder=cache_folder, key=key
            )
    if record.skipped:
        log.warning("'%s': %d records could not be read and are left out", source, record.skipped)
    path = tokens_path(cache_folder, key)
    # when it was last opened, for who clears the folder
    record_path(cache_folder, key).touch()
    return TokenIndex(map_tokens(path), record, path)


def build(
    described: Sequence[SourceFile],
    *,
    source: str,
    contents: Contents,
    cache_folder: Path,
    key: str,
) -> IndexRecord:
    """Tokenise the files. Nothing stands under the index's names before it is complete, and its record comes last."""
    path = tokens_path(cache_folder, key)
    log.info("tokenising '%s' into %s", source, path)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    scratch = path.with_name(f".{path.stem}.datasets-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            writer = TokenWriter(file, vocab_size=contents.bound)
            written = contents.write([Path(file.path) for file in described], writer, scratch)
            writer.finish()
        check_documents(written, source)
        check_unchanged(described)
        summary = summarise(map_tokens(temporary), source=source)
        temporary.replace(path)
        sync_folder(cache_folder)
    finally:
        temporary.unlink(missing_ok=True)
        remove_scratch(scratch)
    record = IndexRecord(
        format=FORMAT,
        source=source,
        tokenizer=contents.tokenizer,
        settings=contents.settings,
        files=tuple(described),
        **asdict(written),
        tokens=writer.count,
        tokens_file=path.name,
        size=path.stat().st_size,
        digest=summary.digest,
        max_token_id=summary.max_token_id,
    )
    write_record(record_path(cache_folder, key), record)
    return record


def write_files(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    writer: TokenWriter,
    scratch: Path,
) -> Written:
    """Write the documents of files."""
    return write_read(
        config, tokenizer, writer, lambda reader: reader.documents(files, scratch=scratch)
    )


def write_read(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    writer: TokenWriter,
    read: Callable[[Any], Iterable[Iterable[str]]],
) -> Written:
    """Write the documents that `read` gets from a reader with the dataset's settings."""
    module = import_module(READER)
    bad = module.BadRecords(config)
    reader = module.DocumentReader(config, bad=bad)
    documents = write_documents(read(reader), tokenizer, writer, config=config)
    bad.check(reader.read + reader.left_out)
    return Written(documents, reader.left_out, bad.count)


def write_documents(
    documents: Iterable[Iterable[str]],
    tokenizer: Tokenizer,
    writer: TokenWriter,
    *,
    config: DocumentsConfig,
) -> int:
    """Write every document with the begin and end tokens that the dataset asks for; returns how many there were."""
    before = tokenizer.encode("", bos=True, eos=False) if config.add_bos else []
    after = tokenizer.encode("", bos=False, eos=True) if config.add_eos else []
    count = 0
    for batch in batches(chain.from_iterable(parts(document, tokenizer) for document in documents)):
        for part, ids in zip(
            batch,
            tokenizer.encode_batch([part.text for part in batch], bos=False, eos=False),
            strict=True,
        ):
            whole = np.array(
                [*(before if part.is_first else ()), *ids, *(after if part.is_last else ())],
                dtype=np.int64,
            )
            writer.write(
                coded_document(whole, begins=part.is_first) if config.restarts_positions else whole
            )
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


def check_documents(written: Written, source: str) -> None:
    """Data without a document cannot be trained on."""
    if written.documents == 0 and written.left_out:
        message = f"the filters let none of the {counted(written.left_out, 'document')} of '{source}' through"
        raise fail(
            "data", message, path=("filters",), help="compare them with what the columns hold"
        )
    if written.documents == 0:
        raise fail(
            "data",
            f"'{source}' holds no documents",
            path=("path",),
            help="the files are empty: name other ones",
        )


def check_unchanged(described: Sequence[SourceFile]) -> None:
    """The index must hold what the hashes tell of."""
    for file in described:
        if not is_unchanged(file):
            raise fail(
                "data",
                f"'{file.path}' changed while it was read",
                path=("path",),
                help="start again when it is complete",
            )


def remove_scratch(scratch: Path) -> None:
    """Remove what the datasets library left: lock files, and folders of its own."""
    if scratch.is_dir():
        for entry in scratch.iterdir():
            entry.unlink()
        scratch.rmdir()
