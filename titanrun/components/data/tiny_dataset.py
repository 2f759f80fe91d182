"""Sequences from the corpus of short documents that ships with titanrun."""

from pathlib import Path

from titanrun.components.data.chunked_sequences import build_token_chunks
from titanrun.components.data.config import TinyDatasetConfig
from titanrun.components.data.document_index import open_column_index
from titanrun.components.data.document_split import Holdout, check_held_out_length
from titanrun.components.data.file_change_guard import UnchangedFile, find_file_state
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_file import open_token_memmap, summarize_tokens
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import (
    compute_tokenizer_fingerprint,
    open_tokenizer_folder,
)
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


def build_tiny_dataset(
    config: TinyDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the windows over the tokens of one part of the corpus.

    Shipped tokens are used for the shipped tokenizer if no documents are held out. Otherwise, the
    corpus is tokenized into `cache_folder`.

    Raises:
        ProblemsFound: A data problem if the part is shorter than a sequence.
    """
    # corpus, tokenizer and tokens ship in one folder
    folder = TinyTokenizerConfig().folder
    source = f"tiny {config.split}"
    is_shipped = tokenizer.fingerprint == compute_tokenizer_fingerprint(
        open_tokenizer_folder(folder)
    )
    if is_shipped and holdout is None:
        path = folder / f"{config.split}.npy"
        state = find_file_state(path)
        tokens = open_token_memmap(path)
        summary = summarize_tokens(tokens, source=source)
        file = UnchangedFile(path, state=state, digest=summary.digest)
        return build_token_chunks(
            tokens, sample_length=sample_length, summary=summary, source=source, file=file
        )
    files = [folder / f"{config.split}.jsonl"]
    index = open_column_index(
        files,
        source=source,
        column="text",
        tokenizer=tokenizer,
        cache_folder=cache_folder,
        holdout=holdout,
    )
    check_held_out_length(holdout, len(index.tokens), sample_length=sample_length, source=source)
    return build_token_chunks(
        index.tokens,
        sample_length=sample_length,
        summary=index.summary,
        source=source,
        file=index.get_unchanged_file(),
    )
