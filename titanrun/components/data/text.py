"""Rows from local text files, tokenised once into an index."""

from pathlib import Path

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.index import open_index
from titanrun.components.data.rows import Rows
from titanrun.components.data.source_files import find_files
from titanrun.components.data.windows import cut_windows
from titanrun.components.tokenizers.tokenizer import Tokenizer


def text_rows(config: TextDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path) -> Rows:
    """Windows over the tokens of all documents in the files that `path` names.

    Raises a data problem, placed relative to the dataset's config, where a file cannot be read.
    """
    files = find_files(config.path)
    index = open_index(files, source=config.path, column=config.column, tokenizer=tokenizer, cache_folder=cache_folder)
    return cut_windows(index.tokens, row_length=row_length, summary=index.summary, source=config.path, file=index.watched())
