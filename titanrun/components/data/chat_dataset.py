"""Sequences of conversations in which only assistant replies count in the loss."""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.chat_config import (
    ChatDatasetConfig,
    TinyChatDatasetConfig,
)
from titanrun.components.data.document_split import DocumentFilter, Holdout, split_documents
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackingOptions, build_packed_dataset
from titanrun.components.data.record_source import (
    find_source_files,
    iter_source_records,
    open_source_index,
)
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.components.data.reply_ends import log_reply_ends
from titanrun.components.data.spec.chat_formats import Conversation, parse_conversation
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
)
from titanrun.components.data.token_records import ID_FACTOR, WEIGHT_FACTOR
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.end_of_turn import load_trained_end_tokens
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    from titanrun.components.data import conversation_writer
else:
    # imported only to read records: it takes more than a second to import
    conversation_writer = LazyModule("titanrun.components.data.conversation_writer")

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
CHAT_VERSION = "chat 2"
"""Version of the rendering of conversations: an index of an earlier one is built again."""


def build_chat_dataset(
    config: ChatDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset of the conversations in files or on the Hub.

    Raises:
        ProblemsFound: A data problem with a path relative to the dataset's config.
    """
    index = open_conversation_index(
        config, tokenizer=tokenizer, cache_folder=cache_folder, holdout=holdout
    )
    options = PackingOptions(
        config.packing, config.too_long, sample_length, document_noun="conversation"
    )
    packed = build_packed_dataset(index, options)
    if config.trains_replies_only:
        log_reply_ends(packed, check_chat_tokenizer(tokenizer), holdout)
    return packed


def build_tiny_chat_dataset(
    config: TinyChatDatasetConfig,
    *,
    tokenizer: Tokenizer,
    sample_length: int,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> IndexedDataset:
    """Build the dataset of the conversations that ship with titanrun."""
    return build_chat_dataset(
        config.to_chat_config(),
        tokenizer=tokenizer,
        sample_length=sample_length,
        cache_folder=cache_folder,
        holdout=holdout,
    )


def iter_conversations(
    config: ChatDatasetConfig, *, holdout: Holdout | None = None
) -> Iterator[Conversation]:
    """Yield the conversations of a dataset in order, or one side of their split."""
    files = find_source_files(config, SUFFIXES)

    def iter_chosen(chosen: DocumentFilter | None) -> Iterator[Conversation]:
        for record in iter_source_records(config, files):
            place, columns = record
            conversation = parse_conversation(config.layout, columns, config.get_columns(), place)
            if conversation_writer.is_conversation_chosen(chosen, record, conversation):
                yield conversation

    yield from (
        iter_chosen(None)
        if holdout is None
        else split_documents(holdout, lambda chosen: list(iter_chosen(chosen)))
    )


def open_conversation_index(
    config: ChatDatasetConfig,
    *,
    tokenizer: Tokenizer,
    cache_folder: Path,
    holdout: Holdout | None = None,
) -> TokenIndex:
    """Return the index of the conversations, built if it does not exist."""
    chat_tokenizer = check_chat_tokenizer(tokenizer)
    template = load_chat_template(chat_tokenizer)
    end_tokens = load_dataset_end_tokens(config, template, chat_tokenizer)
    settings = serialize_chat_settings(config, template, end_tokens)

    def write(
        paths: Sequence[Path], writer: TokenWriter, chosen: DocumentFilter | None
    ) -> DocumentCounts:
        made = conversation_writer.ConversationWriter(
            config, template, chat_tokenizer, end_tokens, chosen
        )
        documents = int(made.write(iter_source_records(config, paths), writer))
        return DocumentCounts(documents, other_side=chosen.num_other_side if chosen else 0)

    bound = tokenizer.vocab_size * ID_FACTOR * (WEIGHT_FACTOR if config.has_token_weights else 1)
    contents = IndexSpec(
        tokenizer.fingerprint, settings, bound, write, holdout, document_noun="conversation"
    )
    return open_source_index(config, contents, suffixes=SUFFIXES, cache_folder=cache_folder)


def check_chat_tokenizer(tokenizer: Tokenizer) -> ChatTokenizer:
    """Return the tokenizer if it can encode conversations, else raise a data problem."""
    if isinstance(tokenizer, ChatTokenizer):
        return tokenizer
    raise problem_error(
        "data",
        "the tokenizer does not return token offsets, which conversations need",
        hint="set tokenizer: {name: huggingface, path: ...}, or implement `folder` and "
        "`encode_with_offsets`",
    )


def serialize_chat_settings(
    config: ChatDatasetConfig, template: ChatTemplate, end_tokens: Collection[str]
) -> str:
    """Return everything in a dataset that the tokens of its conversations depend on."""
    learned = [config.train_on, config.role_weights.get_weights()]
    columns = asdict(config.get_columns())
    if columns["system"] is None:
        del columns["system"]  # indexes of before there was such a column stay valid
    return json.dumps(
        [
            *(CHAT_VERSION, config.layout, columns, *learned, template.digest),
            *([sorted(end_tokens)] if end_tokens else []),
        ]
    )


def load_dataset_end_tokens(
    config: ChatDatasetConfig | RepliesConfig,
    template: ChatTemplate,
    tokenizer: ChatTokenizer,
) -> frozenset[str]:
    """Return the tokens that train_end_of_turn adds to replies, none if it is not set."""
    if not config.train_end_of_turn:
        return frozenset()
    return load_trained_end_tokens(template, tokenizer)
