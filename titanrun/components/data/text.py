"""Rows from local text files, tokenised once into an index."""

from pathlib import Path

from titanrun.components.data.coded import CODES
from titanrun.components.data.config import DocumentsConfig, FilesConfig
from titanrun.components.data.index import TokenIndex, open_documents
from titanrun.components.data.packed_rows import Packing, packed_rows
from titanrun.components.data.rows import Rows
from titanrun.components.data.source_files import find_files
from titanrun.components.data.windows import cut_documents, cut_windows
from titanrun.components.tokenizers.tokenizer import Tokenizer


def text_rows(
    config: FilesConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """Rows of the documents in the files that `path` names.

    Raises a data problem, placed relative to the dataset's config, where a file cannot be read.
    """
    files = find_files(config.path)
    index = open_documents(
        config, files, source=config.path, tokenizer=tokenizer, cache_folder=cache_folder
    )
    return shaped(config, index, row_length=row_length, source=config.path)


def shaped(config: DocumentsConfig, index: TokenIndex, *, row_length: int, source: str) -> Rows:
    """The rows that an index is cut into, as `packing` says."""
    if config.packing == "windows":
        return cut_windows(
            index.tokens,
            row_length=row_length,
            summary=index.summary,
            source=source,
            file=index.watched(),
        )
    if config.packing == "documents":
        highest = index.record.max_token_id // CODES
        return cut_documents(
            index.tokens,
            row_length=row_length,
            summary=index.summary,
            highest=highest,
            source=source,
            file=index.watched(),
        )
    return packed_rows(index, Packing(config.packing, config.too_long, row_length))
