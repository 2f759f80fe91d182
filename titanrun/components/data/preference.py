"""Rows of two conversations each, of which the first ends with the reply that is preferred."""

import json
import logging
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from titanrun.components.data.chat import SUFFIXES, template_of
from titanrun.components.data.coded import CODES, boundaries
from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.index import Contents, TokenIndex, Written, open_contents
from titanrun.components.data.packed_rows import PackedRows
from titanrun.components.data.rows import Rows
from titanrun.components.data.source_files import find_files
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, Tokenizer
from titanrun.config.counted import counted
from titanrun.config.problems import fail

log = logging.getLogger(__name__)

READER = "titanrun.components.data.preference_pairs"
"""Imported only when an index is built, since it takes more than a second to import."""


def preference_rows(
    config: PreferenceDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """One pair in each row, the preferred conversation first. Raises a data problem, placed relative to the dataset's config."""
    if not isinstance(tokenizer, ChatTokenizer):
        message = "the tokenizer does not say where in a text its tokens stand, so no conversations can be made with it"
        raise fail("data", message, help="take tokenizer: {name: huggingface, path: ...}")
    index = open_pairs(
        config, find_files(config.path, SUFFIXES), tokenizer=tokenizer, cache_folder=cache_folder
    )
    starts, lengths = boundaries(index.tokens)
    together = lengths[0::2] + lengths[1::2]
    kept = np.flatnonzero(together <= row_length)
    left_out = len(together) - len(kept)
    if left_out:
        message = f"{counted(left_out, 'pair')} of {len(together)} longer than a row of {row_length} tokens, the longest {together.max()}"
        if config.too_long == "refuse" or not len(kept):
            raise fail("data", message, path=("too_long",), help="set seq_len higher")
        log.warning("%s: left out", message)
    members = [[2 * int(number), 2 * int(number) + 1] for number in kept]
    filled = 100 * int(together[kept].sum()) / (len(members) * row_length)
    log.info(
        "%s, each in a row of %d tokens, %.0f%% of them filled",
        counted(len(members), "pair"),
        row_length,
        filled,
    )
    return PackedRows(
        index,
        starts,
        lengths.tolist(),
        members,
        row_length=row_length,
        shape=f"pairs {config.too_long}",
    )


def open_pairs(
    config: PreferenceDatasetConfig,
    files: list[Path],
    *,
    tokenizer: ChatTokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """The index of the pairs, written unless it is there: two conversations after each other, the preferred one first."""
    template = template_of(config, tokenizer)
    columns = [config.prompt_column, config.chosen_column, config.rejected_column]
    # 2: what both conversations begin with and the prompt says too is there once
    settings = json.dumps(["preference", 2, columns, template.digest])

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> Written:
        pairs = import_module(READER).PairWriter(config, template, tokenizer)
        return Written(documents=int(pairs.write(paths, writer, scratch)))

    contents = Contents(tokenizer.fingerprint, settings, tokenizer.vocab_size * CODES, write)
    return open_contents(files, source=config.path, contents=contents, cache_folder=cache_folder)
