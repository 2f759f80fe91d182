"""Token index: the token ids of all documents in one .npy file, with a record.

Text is tokenized once. The record tells the sources of the index.
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from titanrun.components.data.config import DocumentsConfig
from titanrun.components.data.document_split import (
    DocumentFilter,
    Holdout,
    check_split_sizes,
    format_split,
    split_documents,
)
from titanrun.components.data.file_change_guard import (
    UnchangedData,
    UnchangedFile,
    find_file_state,
)
from titanrun.components.data.spec.data_files import SourceFile, describe_files, is_file_unchanged
from titanrun.components.data.token_blocks import (
    VerifiedTokens,
    hash_blocks,
    read_block_digests,
    write_block_digests,
)
from titanrun.components.data.token_cache import (
    FORMAT,
    UNITS,
    IndexRecord,
    UnitEntry,
    compute_index_key,
    create_cache_folder,
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
from titanrun.components.data.token_writer import TokenWriter, fsync_folder, make_temporary_path
from titanrun.components.data.unit_tokens import UnitTokens
from titanrun.config.base import dump_config
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.heartbeat import send_heartbeat

log = logging.getLogger(__name__)

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
    """Numbers of documents in an index, of documents left out, and of unreadable records.

    `left_out` documents passed no filter. `other_side` ones are held out, or the ones to train on.
    """

    documents: int
    left_out: int = 0
    skipped: int = 0
    other_side: int = 0


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """Content of an index.

    Args:
        tokenizer_fingerprint: Fingerprint of the tokenizer.
        settings: Everything else that the tokens depend on, besides the files.
        vocab_bound: Upper bound of the tokens, exclusive.
        write_tokens: Writes the tokens of the documents of files that pass a filter, and returns
            the counts.
        holdout: Side of the split of the documents, None for all of them.
        document_noun: Name of a document in messages.
        is_unit: Whether it is a part of another index, which checks the number of documents.
    """

    tokenizer_fingerprint: str
    settings: str
    vocab_bound: int
    write_tokens: Callable[[Sequence[Path], TokenWriter, DocumentFilter | None], DocumentCounts]
    holdout: Holdout | None = None
    document_noun: str = "document"
    is_unit: bool = False

    @property
    def all_settings(self) -> str:
        """The settings, with the side of the split."""
        if self.holdout is None:
            return self.settings
        return json.dumps([self.settings, self.holdout.describe()])

    def write(self, files: Sequence[Path], writer: TokenWriter) -> DocumentCounts:
        """Write the tokens of the documents of this side, and return the counts."""
        return split_documents(
            self.holdout, lambda chosen: self.write_tokens(files, writer, chosen)
        )


@dataclass(frozen=True, slots=True)
class TokenIndex:
    """Token ids of all consecutive documents, each with its BOS and EOS.

    The encoding of the ids depends on the `IndexSpec`.
    """

    tokens: VerifiedTokens | UnitTokens
    record: IndexRecord
    path: Path

    @property
    def summary(self) -> TokenSummary:
        """Summary of the ids as of the build of the index."""
        return TokenSummary(self.record.digest, self.record.max_token_id)

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.record.documents

    def get_unchanged_file(self) -> UnchangedData:
        """Return the file of the ids, to check that it stays as it is now."""
        if isinstance(self.tokens, UnitTokens):
            return self.tokens
        return UnchangedFile(
            self.path,
            state=find_file_state(self.path),
            digest=self.record.digest,
            on_change=self.tokens.check_again,
        )


def serialize_document_settings(config: DocumentsConfig) -> str:
    """Return everything in a dataset that the tokens of its documents depend on."""
    read = {
        name: value
        for name, value in dump_config(config).items()
        if name in DOCUMENT_SETTING_FIELDS
    }
    return json.dumps(["documents", read, config.restarts_positions])


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
        # of another user, the files are hashed again next time
        with suppress(OSError):
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
    create_cache_folder(cache_folder)
    key = compute_index_key(spec.all_settings, spec.tokenizer_fingerprint, content_hashes)
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
        log.warning("'%s': %s could not be read and skipped", source, pluralize(skipped, "record"))
    report_split(index.record, spec, source)
    # time of the last use, for the cleanup of the folder; not if it belongs to another user
    with suppress(OSError):
        os.utime(get_index_record_path(cache_folder, key))
    return index


def report_split(record: IndexRecord, spec: IndexSpec, source: str) -> None:
    """Check the sizes of both sides of a split, and log how many documents training leaves out."""
    if spec.holdout is None or spec.is_unit:
        return
    noun, sizes = spec.document_noun, (record.documents, record.other_side)
    check_split_sizes(spec.holdout, *sizes, noun=noun, source=source)
    if not spec.holdout.is_validation:
        prefix = f"'{source}': " if spec.holdout.is_part else ""
        log.info("%s%s", prefix, format_split(*sizes, noun, asked=spec.holdout.size))


def find_token_index(folder: Path, key: str) -> TokenIndex | None:
    """Return an index, None if it must be built.

    An index without digests of its blocks, which an earlier version built, gets them now.
    """
    record = find_complete_index(folder, key)
    if record is None:
        return None
    if record.units:
        return open_units(folder, key, record)
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


def open_units(folder: Path, key: str, record: IndexRecord) -> TokenIndex:
    """Return an index that consists of units."""
    units = folder / UNITS

    def open_unit(unit: UnitEntry) -> TokenIndex:
        index = find_token_index(units, unit.name)
        if index is not None:
            return index
        get_index_record_path(units, unit.name).unlink(missing_ok=True)
        raise problem_error(
            "data",
            f"'{get_index_tokens_path(units, unit.name)}' holds other tokens than were written",
            path=("path",),
            hint="titanrun data build --repair RECIPE tokenizes it anew",
        )

    tokens = UnitTokens(record.units, open_unit=open_unit)
    return TokenIndex(tokens, record, get_index_record_path(folder, key))


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
    side = "" if spec.holdout is None else f" ({spec.holdout.label})"
    log.info("tokenizing '%s'%s into %s", source, side, path)
    temporary = make_temporary_path(path)
    try:
        with temporary.open("wb") as file:
            writer = TokenWriter(file, vocab_size=spec.vocab_bound)
            written = spec.write([Path(file.path) for file in source_files], writer)
            writer.finish()
        check_has_documents(written, spec, source)
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
    record = IndexRecord(
        format=FORMAT,
        source=source,
        tokenizer=spec.tokenizer_fingerprint,
        settings=spec.all_settings,
        files=tuple(source_files),
        **asdict(written),
        tokens=writer.count,
        tokens_file=path.name,
        size=path.stat().st_size,
        digest=summary.digest,
        max_token_id=summary.max_token_id,
    )
    write_index_record(get_index_record_path(cache_folder, key), record)


def check_has_documents(counts: DocumentCounts, spec: IndexSpec, source: str) -> None:
    """Raise a problem if there are no documents, or none on one side of a split."""
    if spec.is_unit:
        return
    if spec.holdout is not None and counts.documents + counts.other_side:
        noun, sizes = spec.document_noun, (counts.documents, counts.other_side)
        check_split_sizes(spec.holdout, *sizes, noun=noun, source=source)
    if counts.documents == 0 and counts.left_out:
        message = (
            f"the filters let none of the {pluralize(counts.left_out, 'document')} of "
            f"'{source}' through"
        )
        raise problem_error(
            "data", message, path=("filters",), hint="compare them with the values of the columns"
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
