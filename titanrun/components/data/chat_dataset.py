"""Sequences of conversations in which only assistant replies count in the loss."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from titanrun.components.data.config import (
    ChatDatasetConfig,
    PreferenceDatasetConfig,
    TinyChatDatasetConfig,
)
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.packed_sequences import PackingOptions, build_packed_dataset
from titanrun.components.data.spec.chat_formats import CHAT_FORMATS, Conversation
from titanrun.components.data.spec.data_files import resolve_data_files
from titanrun.components.data.token_index import (
    DocumentCounts,
    IndexSpec,
    TokenIndex,
    open_files_index,
)
from titanrun.components.data.token_records import ID_FACTOR, WEIGHT_FACTOR
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, load_chat_template
from titanrun.components.tokenizers.tokenizer_protocol import ChatTokenizer, Tokenizer
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import problem_error

if TYPE_CHECKING:
    from titanrun.components.data import conversation_writer, record_readers
else:
    # imported only to read files: they take more than a second to import
    conversation_writer = LazyModule("titanrun.components.data.conversation_writer")
    record_readers = LazyModule("titanrun.components.data.record_readers")

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
CHAT_VERSION = "chat 2"
"""Version of the rendering of conversations: an index of an earlier one is built again."""


def build_chat_dataset(
    config: ChatDatasetConfig, *, tokenizer: Tokenizer, sample_length: int, cache_folder: Path
) -> IndexedDataset:
    """Build the dataset of the conversations in the files at `config.path`.

    Raises:
        ProblemsFound: A data problem with a path relative to the dataset's config.
    """
    files = resolve_data_files(config.path, SUFFIXES)
    index = open_conversation_index(config, files, tokenizer=tokenizer, cache_folder=cache_folder)
    return build_packed_dataset(
        index,
        PackingOptions(
            config.packing, config.too_long, sample_length, document_noun="conversation"
        ),
    )


def build_tiny_chat_dataset(
    config: TinyChatDatasetConfig, *, tokenizer: Tokenizer, sample_length: int, cache_folder: Path
) -> IndexedDataset:
    """Build the dataset of the conversations that ship with titanrun."""
    return build_chat_dataset(
        config.to_chat_config(),
        tokenizer=tokenizer,
        sample_length=sample_length,
        cache_folder=cache_folder,
    )


def iter_conversations(config: ChatDatasetConfig, *, scratch: Path) -> Iterator[Conversation]:
    """Yield the conversations in the files at `config.path`, in order."""
    found = record_readers.iter_records(resolve_data_files(config.path, SUFFIXES), scratch=scratch)
    for place, record in found:
        yield CHAT_FORMATS[config.layout](record, config.get_columns(), place)


def open_conversation_index(
    config: ChatDatasetConfig, files: list[Path], *, tokenizer: Tokenizer, cache_folder: Path
) -> TokenIndex:
    """Return the index of the conversations, built if it does not exist."""
    if not isinstance(tokenizer, ChatTokenizer):
        message = "the tokenizer does not return token offsets, which conversations need"
        raise problem_error(
            "data",
            message,
            hint="set tokenizer: {name: huggingface, path: ...}, or implement `folder` and "
            "`encode_with_offsets`",
        )
    template = load_dataset_chat_template(config, tokenizer)
    learned = [config.train_on, config.role_weights.get_weights()]
    settings = json.dumps(
        [CHAT_VERSION, config.layout, asdict(config.get_columns()), *learned, template.digest]
    )

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> DocumentCounts:
        made = conversation_writer.ConversationWriter(config, template, tokenizer)
        return DocumentCounts(documents=int(made.write(paths, writer, scratch)))

    bound = tokenizer.vocab_size * ID_FACTOR * (WEIGHT_FACTOR if config.has_token_weights else 1)
    contents = IndexSpec(tokenizer.fingerprint, settings, bound, write)
    return open_files_index(files, source=config.path, spec=contents, cache_folder=cache_folder)


def load_dataset_chat_template(
    config: ChatDatasetConfig | PreferenceDatasetConfig, tokenizer: ChatTokenizer
) -> ChatTemplate:
    """Return the template of the file in the recipe, or else of the tokenizer."""
    return load_chat_template(config.template, tokenizer.folder)
