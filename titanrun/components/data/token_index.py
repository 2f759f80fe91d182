"""Token index: the token ids of all documents in one .npy file, with a record.

Text is tokenized once. The record tells the sources of the index.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.data.config import DocumentsConfig, TextDatasetConfig
from titanrun.components.data.encode_documents import write_documents
from titanrun.components.data.file_change_guard import UnchangedFile, find_file_state
from titanrun.components.data.spec.data_files import SourceFile, describe_files, is_file_unchanged
from titanrun.components.data.token_blocks import (
    VerifiedTokens,
    hash_blocks,
    read_block_digests,
    write_block_digests,
)
from titanrun.components.data.token_cache import (
    FORMAT,
    IndexRecord,
    compute_index_key,
    find_complete_index,
    get_file_hashes_path,
    get_index_blocks_path,
    get_index_record_path,
    get_index_tokens_path,
    lock_index,
    read_file_hashes,
    write_file_hashes,
    write_index_record,
)
from titanrun.components.data.token_file import TokenSummary, open_token_memmap, summarize_tokens
from titanrun.components.data.token_records import ID_FACTOR
from titanrun.components.data.token_writer import TokenWriter, fsync_folder
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.base import dump_config
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.heartbeat import send_heartbeat

log = logging.getLogger(__name__)

READER = "titanrun.components.data.document_reader"
"""Module imported only to build an index, since it takes more than a second to import."""
DOCUMENT_SETTING_FIELDS = (
    "column",
    "format",
    "filters",
    "max_documents",
    "add_bos",
    "add_eos",
    "bad_records",
)


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Numbers of documents in an index, filtered documents, and unreadable records."""

    documents: int
    left_out: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Content of an index.

    Args:
        tokenizer_fingerprint: Fingerprint of the tokenizer.
        settings: Everything else that the tokens depend on, besides the files.
        vocab_bound: Upper bound of the tokens, exclusive.
        write_tokens: Writes the tokens of files, with a scratch folder, and returns the counts.
    """

    tokenizer_fingerprint: str
    settings: str
    vocab_bound: int
    write_tokens: Callable[[Sequence[Path], TokenWriter, Path], DocumentCounts]


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """Token ids of all consecutive documents, each with its BOS and EOS.

    The encoding of the ids depends on the `IndexSpec`.
    """

    tokens: VerifiedTokens
    record: IndexRecord
    path: Path

    @property
    def summary(self) -> TokenSummary:
        """Summary of the ids as of the build of the index."""
        return TokenSummary(self.record.digest, self.record.max_token_id)

    def get_unchanged_file(self) -> UnchangedFile:
        """Return the file of the ids, to check that it stays as it is now."""
        return UnchangedFile(
            self.path,
            state=find_file_state(self.path),
            digest=self.record.digest,
            on_change=self.tokens.check_again,
        )


def open_column_index(
    files: Sequence[Path], *, source: str, column: str, tokenizer: Tokenizer, cache_folder: Path
) -> TokenIndex:
    """Return the index of the documents in one column of `files`; see `open_files_index`."""
    config = TextDatasetConfig(path=source, column=column)
    return open_document_index(
        config, files, source=source, tokenizer=tokenizer, cache_folder=cache_folder
    )


def open_document_index(
    config: DocumentsConfig,
    files: Sequence[Path],
    *,
    source: str,
    tokenizer: Tokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """Return the index of the documents that a dataset reads from `files`.

    Tokens are encoded as in token_records.py if the dataset separates documents.
    """
    bound = tokenizer.vocab_size * (ID_FACTOR if config.restarts_positions else 1)
    contents = IndexSpec(
        tokenizer.fingerprint,
        serialize_document_settings(config),
        bound,
        partial(write_file_documents, config, tokenizer),
    )
    return open_files_index(files, source=source, spec=contents, cache_folder=cache_folder)


def serialize_document_settings(config: DocumentsConfig) -> str:
    """Return everything in a dataset that the tokens of its documents depend on."""
    read = {
        name: value
        for name, value in dump_config(config).items()
        if name in DOCUMENT_SETTING_FIELDS
    }
    return json.dumps(["documents", read, config.restarts_positions])


def open_revision_index(
    config: DocumentsConfig,
    records: Callable[[Path], Iterable[tuple[str, Any]]],
    *,
    source: str,
    source_key: Sequence[str],
    tokenizer: Tokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """Return the index of the documents in records that never change.

    Args:
        config: Config of the dataset.
        records: Returns the records, given a scratch folder. Called only to build the index.
        source: Name for messages.
        source_key: Identity of the records.
        tokenizer: Tokenizer of the documents.
        cache_folder: Folder of the indexes.
    """

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> DocumentCounts:
        return write_reader_documents(
            config, tokenizer, writer, lambda reader: reader.iter_record_documents(records(scratch))
        )

    bound = tokenizer.vocab_size * (ID_FACTOR if config.restarts_positions else 1)
    contents = IndexSpec(tokenizer.fingerprint, serialize_document_settings(config), bound, write)
    return open_or_build_index(
        (), source_key, source=source, spec=contents, cache_folder=cache_folder
    )


def open_files_index(
    files: Sequence[Path], *, source: str, spec: IndexSpec, cache_folder: Path
) -> TokenIndex:
    """Return the index of `files`, built in `cache_folder` if it does not exist.

    An existing index is used if it was built from the same bytes with the same settings. `source`
    is the path in the recipe. Several processes may call this at once.
    """
    known_file = get_file_hashes_path(cache_folder, source)
    known = read_file_hashes(known_file)
    described = tuple(describe_files(files, known))
    index = open_or_build_index(
        described,
        [file.sha256 for file in described],
        source=source,
        spec=spec,
        cache_folder=cache_folder,
    )
    if tuple(known.values()) != described:
        write_file_hashes(known_file, source, described)
    return index


def open_or_build_index(
    source_files: Sequence[SourceFile],
    content_hashes: Sequence[str],
    *,
    source: str,
    spec: IndexSpec,
    cache_folder: Path,
) -> TokenIndex:
    """Return the index with these `content_hashes`, of which `source_files` are files."""
    cache_folder.mkdir(parents=True, exist_ok=True)
    key = compute_index_key(spec.settings, spec.tokenizer_fingerprint, content_hashes)
    index = find_token_index(cache_folder, key)
    if index is None:
        with lock_index(cache_folder, key, on_wait=send_heartbeat):
            index = find_token_index(cache_folder, key)
            if index is None:
                build_token_index(
                    source_files, source=source, spec=spec, cache_folder=cache_folder, key=key
                )
                index = find_token_index(cache_folder, key)
    assert index is not None, "its digests were written with it"
    skipped = index.record.skipped
    if skipped:
        log.warning("'%s': %d records could not be read and are skipped", source, skipped)
    # time of the last use, for the cleanup of the folder
    get_index_record_path(cache_folder, key).touch()
    return index


def find_token_index(folder: Path, key: str) -> TokenIndex | None:
    """Return an index, None if it must be built.

    An index without digests of its blocks, which an earlier version built, gets them now.
    """
    record = find_complete_index(folder, key)
    if record is None:
        return None
    path, blocks = get_index_tokens_path(folder, key), get_index_blocks_path(folder, key)
    try:
        tokens = open_token_memmap(path)
        digests = read_block_digests(blocks, tokens, index_digest=record.digest)
        is_damaged = (
            digests is None and summarize_tokens(tokens, source=str(path)).digest != record.digest
        )
    except ProblemsFound:
        is_damaged = True
    if is_damaged:
        log.warning("%s holds other tokens than were written: tokenizing again", path)
        return None
    if digests is None:
        log.info("computing the digests of %s, once", path)
        digests = hash_blocks(tokens)
        write_block_digests(blocks, tokens, digests, index_digest=record.digest)
    discard = partial(get_index_record_path(folder, key).unlink, missing_ok=True)
    return TokenIndex(VerifiedTokens(tokens, digests, path=path, discard=discard), record, path)


def build_token_index(
    source_files: Sequence[SourceFile],
    *,
    source: str,
    spec: IndexSpec,
    cache_folder: Path,
    key: str,
) -> None:
    """Tokenize the files into a new index.

    Files get the names of the index only when they are complete, the record last.
    """
    path = get_index_tokens_path(cache_folder, key)
    log.info("tokenizing '%s' into %s", source, path)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    scratch = path.with_name(f".{path.stem}.datasets-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            writer = TokenWriter(file, vocab_size=spec.vocab_bound)
            written = spec.write_tokens([Path(file.path) for file in source_files], writer, scratch)
            writer.finish()
        check_has_documents(written, source)
        check_files_unchanged(source_files)
        tokens = open_token_memmap(temporary)
        summary = summarize_tokens(tokens, source=source)
        temporary.replace(path)
        write_block_digests(
            get_index_blocks_path(cache_folder, key),
            tokens,
            writer.blocks.finish(),
            index_digest=summary.digest,
        )
        fsync_folder(cache_folder)
    finally:
        temporary.unlink(missing_ok=True)
        remove_scratch_folder(scratch)
    record = IndexRecord(
        format=FORMAT,
        source=source,
        tokenizer=spec.tokenizer_fingerprint,
        settings=spec.settings,
        files=tuple(source_files),
        **asdict(written),
        tokens=writer.count,
        tokens_file=path.name,
        size=path.stat().st_size,
        digest=summary.digest,
        max_token_id=summary.max_token_id,
    )
    write_index_record(get_index_record_path(cache_folder, key), record)


def write_file_documents(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    writer: TokenWriter,
    scratch: Path,
) -> DocumentCounts:
    """Write the documents of files."""
    return write_reader_documents(
        config, tokenizer, writer, lambda reader: reader.iter_documents(files, scratch=scratch)
    )


def write_reader_documents(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    writer: TokenWriter,
    iter_documents: Callable[[Any], Iterable[Iterable[str]]],
) -> DocumentCounts:
    """Write the documents that `iter_documents` gets from a reader with the config's settings."""
    module = import_module(READER)
    bad = module.BadRecordPolicy(config)
    reader = module.DocumentReader(config, on_bad_record=bad)
    documents = write_documents(iter_documents(reader), tokenizer, writer, config=config)
    bad.check(reader.num_read + reader.num_filtered)
    return DocumentCounts(documents, reader.num_filtered, bad.num_skipped)


def check_has_documents(counts: DocumentCounts, source: str) -> None:
    """Raise a data problem if there are no documents."""
    if counts.documents == 0 and counts.left_out:
        message = (
            f"the filters let none of the {pluralize(counts.left_out, 'document')} of "
            f"'{source}' through"
        )
        raise problem_error(
            "data", message, path=("filters",), hint="compare them with what the columns hold"
        )
    if counts.documents == 0:
        raise problem_error(
            "data",
            f"'{source}' holds no documents",
            path=("path",),
            hint="the files are empty: name other files",
        )


def check_files_unchanged(source_files: Sequence[SourceFile]) -> None:
    """Raise a data problem if a file has changed since it was hashed."""
    for file in source_files:
        if not is_file_unchanged(file):
            raise problem_error(
                "data",
                f"'{file.path}' changed while it was read",
                path=("path",),
                hint="start again when it is complete",
            )


def remove_scratch_folder(scratch: Path) -> None:
    """Remove the lock files and folders that the datasets library left."""
    if scratch.is_dir():
        for entry in scratch.iterdir():
            entry.unlink()
        scratch.rmdir()
