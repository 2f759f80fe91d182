"""Sequences of one conversation each, whose last reply has a label."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.chat_dataset import (
    SUFFIXES,
    check_chat_tokenizer,
    load_dataset_end_tokens,
)
from titanrun.components.data.document_split import DocumentFilter, Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackingOptions, build_packed_dataset
from titanrun.components.data.record_source import iter_source_records, open_source_index
from titanrun.components.data.replies_config import (
    LabelledDatasetConfig,
    TinyLabelledDatasetConfig,
)
from titanrun.components.data.reply_ends import log_reply_ends
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
)
from titanrun.components.data.token_records import ID_FACTOR, WEIGHT_FACTOR, read_document_values
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.lazy_module import LazyModule

if TYPE_CHECKING:
    from titanrun.components.data import preference_writer
else:
    # imported only to build an index: it takes more than a second to import
    preference_writer = LazyModule("titanrun.components.data.preference_writer")

log = logging.getLogger(__name__)


def build_labelled_dataset(
    config: LabelledDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset with one conversation per sequence and its label as weights of tokens.

    Raises:
        ProblemsFound: A data problem with a path relative to the dataset's config.
    """
    checked = check_chat_tokenizer(tokenizer)
    index = open_labelled_index(
        config, tokenizer=checked, cache_folder=cache_folder, holdout=holdout
    )
    log_labels(index)
    options = PackingOptions(None, config.too_long, sample_length, document_noun="conversation")
    packed = build_packed_dataset(index, options)
    log_reply_ends(packed, checked, holdout)
    return packed


def build_tiny_labelled_dataset(
    config: TinyLabelledDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset of the labelled replies that ship with titanrun."""
    return build_labelled_dataset(
        LabelledDatasetConfig(path=config.path, from_pairs=True),
        tokenizer=tokenizer,
        sample_length=sample_length,
        cache_folder=cache_folder,
        holdout=holdout,
    )


def open_labelled_index(
    config: LabelledDatasetConfig,
    *,
    tokenizer: ChatTokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the conversations, built if it does not exist."""
    template = load_chat_template(tokenizer)
    columns = [config.prompt_column, *(column for column, _ in config.get_reply_columns())]
    columns += [] if config.system_column is None else [config.system_column]
    end_tokens = load_dataset_end_tokens(config, template, tokenizer)
    settings = json.dumps(
        ["labelled", 1, config.from_pairs, columns, template.digest, sorted(end_tokens)]
    )

    def write(
        paths: Sequence[Path], writer: TokenWriter, chosen: DocumentFilter | None
    ) -> DocumentCounts:
        replies = preference_writer.LabelledReplyWriter(
            config, template, tokenizer, end_tokens, chosen
        )
        records = iter_source_records(config, paths)
        documents = int(replies.write(records, writer))
        return DocumentCounts(documents, other_side=chosen.num_other_side if chosen else 0)

    bound = tokenizer.vocab_size * ID_FACTOR * WEIGHT_FACTOR
    noun = "pair" if config.from_pairs else "conversation"
    contents = IndexSpec(tokenizer.fingerprint, settings, bound, write, holdout, document_noun=noun)
    return open_source_index(config, contents, suffixes=SUFFIXES, cache_folder=cache_folder)


def log_labels(index: TokenIndex) -> None:
    """Log the number of replies of each kind, as a warning if there is only one kind."""
    labels = read_document_values(index.tokens)
    desirable = int(labels.sum())
    counts = (desirable, len(labels) - desirable)
    is_one_sided = min(counts) == 0
    log.log(
        logging.WARNING if is_one_sided else logging.INFO,
        "%d desirable and %d undesirable replies%s",
        *counts,
        ": nothing to tell apart" if is_one_sided else "",
    )
