"""Sequences from local text files, tokenized once into an index."""

from pathlib import Path

from titanrun.components.data.chunked_sequences import build_document_chunks, build_token_chunks
from titanrun.components.data.config import DocumentsConfig, FilesConfig
from titanrun.components.data.document_index import open_document_index
from titanrun.components.data.document_split import Holdout, check_held_out_length
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackingOptions, build_packed_dataset
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.token_index import TokenIndex
from titanrun.components.data.token_records import ID_FACTOR
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


def build_text_dataset(
    config: FilesConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the sequences of the documents in the files at `config.path`.

    Raises:
        ProblemsFound: A data problem if a file cannot be read, with a path relative to the
            dataset's config.
    """
    files = resolve_data_files(config.path)
    index = open_document_index(
        config,
        files,
        source=config.path,
        tokenizer=tokenizer,
        cache_folder=cache_folder,
        holdout=holdout,
    )
    return build_sequences(
        config, index, sample_length=sample_length, source=config.path, holdout=holdout
    )


def build_sequences(
    config: DocumentsConfig,
    index: TokenIndex,
    *,
    sample_length: int,
    source: str,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the sequences of an index by the packing of the config."""
    if config.packing in ("windows", "documents"):
        check_held_out_length(
            holdout, len(index.tokens), sample_length=sample_length, source=source
        )
    if config.packing == "windows":
        return build_token_chunks(
            index.tokens,
            sample_length=sample_length,
            summary=index.summary,
            source=source,
            file=index.get_unchanged_file(),
        )
    if config.packing == "documents":
        highest = index.record.max_token_id // ID_FACTOR
        return build_document_chunks(
            index.tokens,
            sample_length=sample_length,
            summary=index.summary,
            max_token_id=highest,
            source=source,
            file=index.get_unchanged_file(),
        )
    return build_packed_dataset(
        index, PackingOptions(config.packing, config.too_long, sample_length)
    )
