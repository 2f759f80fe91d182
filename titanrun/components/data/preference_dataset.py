"""Sequences of two conversations each, the one with the preferred reply first."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from titanrun.components.data.chat_dataset import SUFFIXES, load_dataset_chat_template
from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackedDataset
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
    open_files_index,
)
from titanrun.components.data.token_records import ID_FACTOR, find_document_boundaries
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    from titanrun.components.data import preference_writer
else:
    # imported only to build an index: it takes more than a second to import
    preference_writer = LazyModule("titanrun.components.data.preference_writer")

log = logging.getLogger(__name__)


def build_preference_dataset(
    config: PreferenceDatasetConfig, *, tokenizer: Tokenizer, sample_length: int, cache_folder: Path
) -> IndexedDataset:
    """Build the dataset with one pair per sequence, the preferred conversation first.

    Raises:
        ProblemsFound: A data problem with a path relative to the dataset's config.
    """
    if not isinstance(tokenizer, ChatTokenizer):
        message = "the tokenizer does not return token offsets, which conversations need"
        raise problem_error("data", message, hint="set tokenizer: {name: huggingface, path: ...}")
    index = open_preference_index(
        config,
        resolve_data_files(config.path, SUFFIXES),
        tokenizer=tokenizer,
        cache_folder=cache_folder,
    )
    starts, lengths = find_document_boundaries(index.tokens)
    together = lengths[0::2] + lengths[1::2]
    kept = np.flatnonzero(together <= sample_length)
    left_out = len(together) - len(kept)
    if left_out:
        message = (
            f"{pluralize(left_out, 'pair')} of {len(together)} longer than a sequence of "
            f"{sample_length} tokens, the longest {together.max()}"
        )
        if config.too_long == "refuse" or not len(kept):
            raise problem_error("data", message, path=("too_long",), hint="set seq_len higher")
        log.warning("%s: dropped", message)
    members = [[2 * int(number), 2 * int(number) + 1] for number in kept]
    filled = 100 * int(together[kept].sum()) / (len(members) * sample_length)
    log.info(
        "%s, one per sequence of %d tokens, %.0f%% non-padding",
        pluralize(len(members), "pair"),
        sample_length,
        filled,
    )
    return PackedDataset(
        index,
        starts,
        lengths.tolist(),
        members,
        sample_length=sample_length,
        packing_key=f"pairs {config.too_long}",
    )


def open_preference_index(
    config: PreferenceDatasetConfig,
    files: list[Path],
    *,
    tokenizer: ChatTokenizer,
    cache_folder: Path,
) -> TokenIndex:
    """Return the index of the pairs, built if it does not exist.

    It holds two consecutive conversations per pair, the preferred one first.
    """
    template = load_dataset_chat_template(config, tokenizer)
    columns = [config.prompt_column, config.chosen_column, config.rejected_column]
    # 2: the prompt occurs once if both conversations begin with it. 3: tools and tool calls
    settings = json.dumps(["preference", 3, columns, template.digest])

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> DocumentCounts:
        pairs = preference_writer.PreferencePairWriter(config, template, tokenizer)
        return DocumentCounts(documents=int(pairs.write(paths, writer, scratch)))

    contents = IndexSpec(tokenizer.fingerprint, settings, tokenizer.vocab_size * ID_FACTOR, write)
    return open_files_index(files, source=config.path, spec=contents, cache_folder=cache_folder)
