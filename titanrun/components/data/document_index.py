"""Token indexes of documents, from files or from records that never change."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.components.data.bad_share import check_bad_share
from titanrun.components.data.config import DocumentsConfig, TextDatasetConfig
from titanrun.components.data.document_split import DocumentFilter, Holdout
from titanrun.components.data.encode_documents import write_documents
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
    open_files_index,
    open_or_build_index,
    serialize_document_settings,
)
from titanrun.components.data.token_records import ID_FACTOR
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

READER = "titanrun.components.data.document_reader"
"""Module imported only to build an index, since it takes more than a second to import."""


def open_column_index(
    files: Sequence[Path],
    *,
    source: str,
    column: str,
    tokenizer: Tokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the documents in one column of `files`; see `open_files_index`."""
    config = TextDatasetConfig(path=source, column=column)
    return open_document_index(
        config,
        files,
        source=source,
        tokenizer=tokenizer,
        cache_folder=cache_folder,
        holdout=holdout,
    )


def open_document_index(
    config: DocumentsConfig,
    files: Sequence[Path],
    *,
    source: str,
    tokenizer: Tokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the documents that a dataset reads from `files`.

    Tokens are encoded as in token_records.py if the dataset separates documents.
    """
    spec = make_document_spec(config, tokenizer, holdout)
    index = open_files_index(files, source=source, spec=spec, cache_folder=cache_folder)
    return check_index_share(index, config)


def check_index_share(index: TokenIndex, config: DocumentsConfig) -> TokenIndex:
    """Return an index that was perhaps built with another max_bad_share.

    Raises:
        ProblemsFound: A data problem if more of its records than that could not be read.
    """
    counts = index.record
    num_records = counts.documents + counts.other_side + counts.left_out + counts.skipped
    check_bad_share(counts.skipped, num_records, max_share=config.max_bad_share)
    return index


def make_document_spec(
    config: DocumentsConfig, tokenizer: Tokenizer, holdout: Holdout | None, *, is_unit: bool = False
) -> IndexSpec:
    """Return the content of the index of the documents in files."""
    return IndexSpec(
        tokenizer.fingerprint,
        serialize_document_settings(config),
        tokenizer.vocab_size * (ID_FACTOR if config.restarts_positions else 1),
        partial(write_file_documents, config, tokenizer),
        holdout,
        is_unit=is_unit,
    )


def open_revision_index(
    config: DocumentsConfig,
    records: Callable[[], Iterable[tuple[str, Any]]],
    *,
    source: str,
    source_key: Sequence[str],
    tokenizer: Tokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the documents in records that never change.

    Args:
        config: Config of the dataset.
        records: Returns the records. Called only to build the index.
        source: Name for messages.
        source_key: Identity of the records.
        tokenizer: Tokenizer of the documents.
        cache_folder: Folder of the indexes.
        holdout: Side of the split of the documents.
    """

    def write(
        paths: Sequence[Path], writer: TokenWriter, chosen: DocumentFilter | None
    ) -> DocumentCounts:
        return write_reader_documents(
            config,
            tokenizer,
            writer,
            lambda reader: reader.iter_record_documents(records()),
            chosen,
        )

    bound = tokenizer.vocab_size * (ID_FACTOR if config.restarts_positions else 1)
    settings = serialize_document_settings(config)
    contents = IndexSpec(tokenizer.fingerprint, settings, bound, write, holdout)
    index = open_or_build_index(
        (), source_key, source=source, spec=contents, cache_folder=cache_folder
    )
    return check_index_share(index, config)


def write_file_documents(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    files: Sequence[Path],
    writer: TokenWriter,
    chosen: DocumentFilter | None,
) -> DocumentCounts:
    """Write the documents of files."""
    return write_reader_documents(
        config,
        tokenizer,
        writer,
        lambda reader: reader.iter_documents(files),
        chosen,
    )


def write_reader_documents(
    config: DocumentsConfig,
    tokenizer: Tokenizer,
    writer: TokenWriter,
    iter_documents: Callable[[Any], Iterable[Iterable[str]]],
    chosen: DocumentFilter | None,
) -> DocumentCounts:
    """Write the documents that `iter_documents` gets from a reader with the config's settings."""
    module = import_module(READER)
    bad = module.BadRecordPolicy(config)
    reader = module.DocumentReader(config, on_bad_record=bad, chosen=chosen)
    documents = write_documents(iter_documents(reader), tokenizer, writer, config=config)
    bad.check(reader.num_read + reader.num_filtered)
    other_side = 0 if chosen is None else chosen.num_other_side
    return DocumentCounts(documents, reader.num_filtered, bad.num_skipped, other_side)
