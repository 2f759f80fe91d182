"""Sequences of two conversations each, the one with the preferred reply first."""

import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from titanrun.components.data.chat_dataset import (
    SUFFIXES,
    check_chat_tokenizer,
    load_dataset_end_tokens,
)
from titanrun.components.data.document_split import DocumentFilter, Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackedDataset
from titanrun.components.data.record_source import iter_source_records, open_source_index
from titanrun.components.data.replies_config import (
    PreferenceDatasetConfig,
    TinyPairsDatasetConfig,
)
from titanrun.components.data.reply_ends import log_reply_ends
from titanrun.components.data.spec.long_documents import (
    describe_long_documents,
    suggest_sequence_length,
)
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
)
from titanrun.components.data.token_records import ID_FACTOR, find_document_boundaries
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
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
    config: PreferenceDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset with one pair per sequence, the preferred conversation first.

    Raises:
        ProblemsFound: A data problem with a path relative to the dataset's config.
    """
    checked = check_chat_tokenizer(tokenizer)
    index = open_preference_index(
        config, tokenizer=checked, cache_folder=cache_folder, holdout=holdout
    )
    packed = pack_pairs(config, index, sample_length)
    log_reply_ends(packed, checked, holdout)
    return packed


def pack_pairs(
    config: PreferenceDatasetConfig, index: TokenIndex, sample_length: int
) -> PackedDataset:
    """Build the sequences of one pair each, and log those that are too long."""
    starts, lengths = find_document_boundaries(index.tokens)
    together = lengths[0::2] + lengths[1::2]
    kept = np.flatnonzero(together <= sample_length)
    left_out = len(together) - len(kept)
    if left_out:
        longest = int(together.max())
        message = describe_long_documents(
            "pair", left_out, len(together), sample_length=sample_length, longest=longest
        )
        if config.too_long == "refuse" or not len(kept):
            hint = suggest_sequence_length(longest)
            raise problem_error("data", message, path=("too_long",), hint=hint)
        log.warning("%s: dropped", message)
    members = [[2 * int(number), 2 * int(number) + 1] for number in kept]
    filled = 100 * int(together[kept].sum()) / (len(members) * sample_length)
    log.info(
        "%s, one per sequence of %s tokens, %.0f%% non-padding",
        pluralize(len(members), "pair"),
        f"{sample_length:,}",
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


def build_tiny_pairs_dataset(
    config: TinyPairsDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset of the pairs that ship with titanrun."""
    return build_preference_dataset(
        PreferenceDatasetConfig(path=config.path),
        tokenizer=tokenizer,
        sample_length=sample_length,
        cache_folder=cache_folder,
        holdout=holdout,
    )


def open_preference_index(
    config: PreferenceDatasetConfig,
    *,
    tokenizer: ChatTokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the pairs, built if it does not exist.

    It holds two consecutive conversations per pair, the preferred one first.
    """
    template = load_chat_template(tokenizer)
    end_tokens = load_dataset_end_tokens(config, template, tokenizer)
    settings = serialize_preference_settings(config, template, end_tokens)

    def write(
        paths: Sequence[Path], writer: TokenWriter, chosen: DocumentFilter | None
    ) -> DocumentCounts:
        pairs = preference_writer.PreferencePairWriter(
            config, template, tokenizer, end_tokens, chosen
        )
        documents = int(pairs.write(iter_source_records(config, paths), writer))
        return DocumentCounts(documents, other_side=chosen.num_other_side if chosen else 0)

    bound = tokenizer.vocab_size * ID_FACTOR
    contents = IndexSpec(
        tokenizer.fingerprint, settings, bound, write, holdout, document_noun="pair"
    )
    return open_source_index(config, contents, suffixes=SUFFIXES, cache_folder=cache_folder)


def serialize_preference_settings(
    config: PreferenceDatasetConfig, template: ChatTemplate, end_tokens: Collection[str]
) -> str:
    """Return everything in a dataset that the tokens of its pairs depend on."""
    columns = [config.prompt_column, config.chosen_column, config.rejected_column]
    columns += [] if config.system_column is None else [config.system_column]
    learned = [sorted(end_tokens)] if end_tokens else []
    # 2: the prompt occurs once if both conversations begin with it. 3: tools and tool calls
    return json.dumps(["preference", 3, columns, template.digest, *learned])
