"""Rows of conversations, of which only what the assistant says counts in the loss."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from titanrun.components.data.chat_layouts import LAYOUTS, Message
from titanrun.components.data.coded import CODES, WEIGHTS
from titanrun.components.data.config import (
    ChatDatasetConfig,
    PreferenceDatasetConfig,
    TinyChatDatasetConfig,
)
from titanrun.components.data.index import Contents, TokenIndex, Written, open_contents
from titanrun.components.data.packed_rows import Packing, packed_rows
from titanrun.components.data.rows import Rows
from titanrun.components.data.source_files import find_files
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, chosen_template
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, Tokenizer
from titanrun.config.problems import fail

SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
READER = "titanrun.components.data.conversations"
"""This and RECORDS are imported only when files are read, since they take more than a second to import."""
RECORDS = "titanrun.components.data.records"


def chat_rows(
    config: ChatDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """The conversations in the files that `path` names. Raises a data problem, placed relative to the dataset's config."""
    files = find_files(config.path, SUFFIXES)
    index = open_conversations(config, files, tokenizer=tokenizer, cache_folder=cache_folder)
    return packed_rows(
        index, Packing(config.packing, config.too_long, row_length, noun="conversation")
    )


def tiny_chat_rows(
    config: TinyChatDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path
) -> Rows:
    """The conversations that ship with titanrun."""
    return chat_rows(
        config.as_chat(), tokenizer=tokenizer, row_length=row_length, cache_folder=cache_folder
    )


def conversations_in(config: ChatDatasetConfig, *, scratch: Path) -> Iterator[list[Message]]:
    """The conversations in the files that `path` names, in their order."""
    records = import_module(RECORDS).read_records(
        find_files(config.path, SUFFIXES), scratch=scratch
    )
    for place, record in records:
        yield LAYOUTS[config.layout](record, config.columns(), place)


def open_conversations(
    config: ChatDatasetConfig, files: list[Path], *, tokenizer: Tokenizer, cache_folder: Path
) -> TokenIndex:
    """The index of the conversations, written unless it is there."""
    if not isinstance(tokenizer, ChatTokenizer):
        message = "the tokenizer does not say where in a text its tokens stand, so no conversations can be made with it"
        raise fail(
            "data",
            message,
            help="take tokenizer: {name: huggingface, path: ...}, or give it `folder` and `encode_placed`",
        )
    template = template_of(config, tokenizer)
    learned = [config.train_on, config.role_weights.named()]
    settings = json.dumps(
        ["chat", config.layout, asdict(config.columns()), *learned, template.digest]
    )

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> Written:
        conversations = import_module(READER).ConversationWriter(config, template, tokenizer)
        return Written(documents=int(conversations.write(paths, writer, scratch)))

    bound = tokenizer.vocab_size * CODES * (WEIGHTS if config.weighs_tokens else 1)
    contents = Contents(tokenizer.fingerprint, settings, bound, write)
    return open_contents(files, source=config.path, contents=contents, cache_folder=cache_folder)


def template_of(
    config: ChatDatasetConfig | PreferenceDatasetConfig, tokenizer: ChatTokenizer
) -> ChatTemplate:
    """The template in the file that the recipe names, or the tokenizer's own."""
    return chosen_template(config.template, tokenizer.folder)
