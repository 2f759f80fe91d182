"""Rows from the corpus of short documents that ships with titanrun."""

from pathlib import Path

from titanrun.components.data.config import TinyDatasetConfig
from titanrun.components.data.index import open_index
from titanrun.components.data.rows import Rows
from titanrun.components.data.token_file import map_tokens, summarise
from titanrun.components.data.watched_file import WatchedFile, state_of
from titanrun.components.data.windows import cut_windows
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.components.tokenizers.vocabulary import fingerprint, open_folder


def tiny_rows(
    config: TinyDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """Windows over the tokens of one part of the corpus: shipped ones for the shipped tokenizer, else tokenised into `cache_folder`.

    Raises a data problem where the part is shorter than a row.
    """
    # corpus, tokenizer and tokens ship in one folder
    folder = TinyTokenizerConfig().folder
    source = f"tiny {config.split}"
    if tokenizer.fingerprint == fingerprint(open_folder(folder)):
        path = folder / f"{config.split}.npy"
        state = state_of(path)
        tokens = map_tokens(path)
        summary = summarise(tokens, source=source)
        file = WatchedFile(path, state=state, digest=summary.digest)
        return cut_windows(tokens, row_length=row_length, summary=summary, source=source, file=file)
    files = [folder / f"{config.split}.jsonl"]
    index = open_index(
        files, source=source, column="text", tokenizer=tokenizer, cache_folder=cache_folder
    )
    return cut_windows(
        index.tokens,
        row_length=row_length,
        summary=index.summary,
        source=source,
        file=index.watched(),
    )
