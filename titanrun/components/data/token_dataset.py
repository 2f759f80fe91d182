"""Sequences from token ids that were written by other software."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chunked_sequences import build_document_chunks, build_token_chunks
from titanrun.components.data.config import TokensDatasetConfig
from titanrun.components.data.file_change_guard import UnchangedFile, find_file_state
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackingOptions, build_packed_dataset
from titanrun.components.data.token_blocks import VerifiedTokens
from titanrun.components.data.token_file import TokenSummary, open_token_memmap, summarize_tokens
from titanrun.components.data.token_file_digests import verify_token_file
from titanrun.components.data.tokenized_documents import open_tokenized_documents
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error


class TokenArrayDataset:
    """Rows of a 2-D array as sequences."""

    def __init__(
        self,
        tokens: NDArray[np.integer],
        *,
        verified: VerifiedTokens,
        summary: TokenSummary,
        file: UnchangedFile,
    ) -> None:
        self._tokens, self._verified = tokens, verified
        self._file = file
        self.fingerprint = summary.compute_fingerprint(tokens.shape[1])
        self.max_token_id = summary.max_token_id

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        if self._tokens.flags.c_contiguous:
            length = self._tokens.shape[1]
            start = range(len(self))[index] * length
            return self._verified[start : start + length].astype(np.int64)
        # a row has ids of all blocks
        self._verified[0 : len(self._verified)]
        row: NDArray[np.integer] = self._tokens[index]
        return row.astype(np.int64)

    def check(self) -> None:
        """Raise a data problem if the file has changed since it was opened."""
        self._file.check()


def build_token_dataset(
    config: TokensDatasetConfig,
    *,
    sample_length: int,
    tokenizer: Tokenizer | None = None,
    cache_folder: Path | None = None,
) -> IndexedDataset:
    """Build the dataset of the rows of a 2-D array, of the windows of a 1-D one, or of documents.

    The cache keeps digests of an array, and the tokenizer is compared with that of the files.

    Raises:
        ProblemsFound: A data problem if the file does not fit, with a path relative to the
            dataset's config.
    """
    if config.layout != "npy":
        return build_document_dataset(config, sample_length=sample_length, tokenizer=tokenizer)
    path = Path(config.path)
    state = find_file_state(path)
    tokens = open_token_memmap(path)
    if tokens.ndim == 2:
        check_sample_length(tokens.shape[1], sample_length, config.path)
    summary = summarize_tokens(tokens, source=config.path)
    verified = verify_token_file(path, tokens, state=state, cache_folder=cache_folder)
    file = UnchangedFile(path, state=state, digest=summary.digest, on_change=verified.check_again)
    if tokens.ndim == 1:
        return build_token_chunks(
            verified, sample_length=sample_length, summary=summary, source=config.path, file=file
        )
    return TokenArrayDataset(tokens, verified=verified, summary=summary, file=file)


def build_document_dataset(
    config: TokensDatasetConfig, *, sample_length: int, tokenizer: Tokenizer | None
) -> IndexedDataset:
    """Build the dataset of the documents in files of datatrove or Megatron."""
    documents = open_tokenized_documents(config.path, config.layout, tokenizer)
    if config.packing == "windows":
        return build_token_chunks(
            documents.ids,
            sample_length=sample_length,
            summary=documents.id_summary,
            source=config.path,
            file=documents.get_unchanged_file(),
        )
    if config.packing == "documents":
        return build_document_chunks(
            documents.tokens,
            sample_length=sample_length,
            summary=documents.summary,
            max_token_id=documents.max_token_id,
            source=config.path,
            file=documents.get_unchanged_file(),
        )
    return build_packed_dataset(
        documents, PackingOptions(config.packing, config.too_long, sample_length)
    )


def check_sample_length(found_length: int, sample_length: int, source: str) -> None:
    """Check that rows have seq_len + 1 tokens: the inputs and one more label."""
    if found_length == sample_length:
        return
    hint = (
        f"set seq_len to {found_length - 1}" if found_length > 1 else "save rows of seq_len + 1 ids"
    )
    message = (
        f"'{source}' has rows of {pluralize(found_length, 'token')}, "
        f"seq_len {sample_length - 1} needs {sample_length}"
    )
    raise problem_error("data", message, path=("path",), hint=hint)
