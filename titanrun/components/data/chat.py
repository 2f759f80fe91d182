"""Rows of conversations, of which only what the assistant says counts in the loss."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chat_layouts import LAYOUTS, Message
from titanrun.components.data.config import ChatDatasetConfig, TinyChatDatasetConfig
from titanrun.components.data.index import Contents, TokenIndex, open_contents
from titanrun.components.data.packing import PACKINGS, Members
from titanrun.components.data.rows import Rows
from titanrun.components.data.source_files import find_files
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, folder_template
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, Tokenizer
from titanrun.components.tokenizers.vocabulary import open_folder
from titanrun.config.counted import counted
from titanrun.config.placed import placed
from titanrun.config.problems import fail

log = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".parquet", ".csv")
READER = "titanrun.components.data.conversations"
"""This and RECORDS are imported only when files are read, since they take more than a second to import."""
CODES, BEGINS, COUNTS = 4, 2, 1
"""A token of the index is its id times 4, plus 2 where it begins a conversation, plus 1 where it counts as a label."""
BLOCK = 2**24
RECORDS = "titanrun.components.data.records"


class ChatRows:
    """Rows of whole conversations, positions starting anew with each; what is left of a row is filled with id 0 and counts nothing.

    Args:
        index: of the conversations, each token coded as conversations.py says.
        starts: of each conversation in the index.
        lengths: of each, at most `row_length`.
        members: the conversations of each row.
    """

    def __init__(self, index: TokenIndex, starts: NDArray[np.int64], lengths: list[int], members: Members, *, row_length: int) -> None:
        self._tokens, self._file = index.tokens, index.watched()
        self._starts, self._lengths, self._members = starts, lengths, members
        self._row_length = row_length
        self.fingerprint = index.summary.fingerprint(row_length)
        self.max_token_id = index.record.max_token_id // CODES

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """Ids, which of them count, and positions, [3, seq_len + 1]."""
        row = np.zeros((3, self._row_length), dtype=np.int64)
        end = 0
        for number in self._members[index]:
            start, length = int(self._starts[number]), self._lengths[number]
            coded = self._tokens[start : start + length].astype(np.int64)
            row[:, end : end + length] = coded // CODES, coded & COUNTS, np.arange(length)
            end += length
        row[2, end:] = np.arange(self._row_length - end)
        return row

    def check(self) -> None:
        """Raises a data problem where the index has changed since it was opened."""
        self._file.check()


def chat_rows(config: ChatDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path) -> Rows:
    """The conversations in the files that `path` names. Raises a data problem, placed relative to the dataset's config."""
    files = find_files(config.path, SUFFIXES)
    index = open_conversations(config, files, tokenizer=tokenizer, cache_folder=cache_folder)
    starts, lengths = boundaries(index.tokens)
    kept = fitting(config, index.tokens, starts, lengths, row_length=row_length)
    cut = np.minimum(lengths[kept], row_length).tolist()
    members = PACKINGS[config.packing](cut, row_length=row_length)
    log.info(
        "%s in %s of %d tokens, %.0f%% of them filled",
        *(counted(len(cut), "conversation"), counted(len(members), "row")),
        *(row_length, 100 * sum(cut) / max(1, len(members) * row_length)),
    )
    rows = ChatRows(index, starts[kept], cut, members, row_length=row_length)
    # other rows of the same tokens are other data to a run that goes on
    rows.fingerprint = f"{rows.fingerprint} {config.packing} {config.too_long}"
    return rows


def tiny_chat_rows(config: TinyChatDatasetConfig, *, tokenizer: Tokenizer, row_length: int, cache_folder: Path) -> Rows:
    """The conversations that ship with titanrun."""
    return chat_rows(config.as_chat(), tokenizer=tokenizer, row_length=row_length, cache_folder=cache_folder)


def conversations_in(config: ChatDatasetConfig, *, scratch: Path) -> Iterator[list[Message]]:
    """The conversations in the files that `path` names, in their order."""
    records = import_module(RECORDS).read_records(find_files(config.path, SUFFIXES), scratch=scratch)
    for place, record in records:
        yield LAYOUTS[config.layout](record, config.columns(), place)


def open_conversations(config: ChatDatasetConfig, files: list[Path], *, tokenizer: Tokenizer, cache_folder: Path) -> TokenIndex:
    """The index of the conversations, written unless it is there."""
    if not isinstance(tokenizer, ChatTokenizer):
        message = "the tokenizer does not say where in a text its tokens stand, so no conversations can be made with it"
        raise fail("data", message, help="take tokenizer: {name: huggingface, path: ...}, or give it `folder` and `encode_placed`")
    template = template_of(config, tokenizer)
    columns = config.columns()
    settings = json.dumps(["chat", config.layout, asdict(columns), config.train_on, template.digest])

    def write(paths: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        module = import_module(READER)
        conversations = module.ConversationWriter(config.layout, columns, template, config.train_on, tokenizer)
        return int(conversations.write(paths, writer, scratch))

    contents = Contents(tokenizer.fingerprint, settings, tokenizer.vocab_size * CODES, write)
    return open_contents(files, source=config.path, contents=contents, cache_folder=cache_folder)


def template_of(config: ChatDatasetConfig, tokenizer: ChatTokenizer) -> ChatTemplate:
    """The template in the file that the recipe names, or the tokenizer's own."""
    if config.template is None:
        return folder_template(tokenizer.folder)
    try:
        text = Path(config.template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"'{config.template}' cannot be read: {error}"
        raise fail("data", message, path=("template",), help="name a file with a Jinja template, or leave template out") from None
    with placed(("template",)):
        return ChatTemplate(text, open_folder(tokenizer.folder).special_tokens, source=config.template)


def boundaries(tokens: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each conversation of an index starts, and its length."""
    starts = np.concatenate([at + np.flatnonzero(tokens[at : at + BLOCK] & BEGINS) for at in range(0, len(tokens), BLOCK)])
    return starts, np.diff(starts, append=len(tokens))


def fitting(
    config: ChatDatasetConfig, tokens: NDArray[np.integer], starts: NDArray[np.int64], lengths: NDArray[np.int64], *, row_length: int
) -> NDArray[np.int64]:
    """Numbers of the conversations that a row holds, whole or cut. How many are left out or cut is logged; what is refused is a problem."""
    too_long = np.flatnonzero(lengths > row_length)
    if not len(too_long):
        return np.arange(len(lengths))
    longest = (
        f"{counted(len(too_long), 'conversation')} of {len(lengths)} longer than a row of {row_length} tokens, the longest {lengths.max()}"
    )
    if config.too_long == "refuse":
        raise fail("data", longest, path=("too_long",), help="set seq_len higher, or too_long to drop or cut")
    out = too_long
    if config.too_long == "cut":
        out = np.array([number for number in too_long if not (tokens[starts[number] :][:row_length] & COUNTS).any()], dtype=np.int64)
    log.warning("%s: %d left out, %d cut", longest, len(out), len(too_long) - len(out))
    kept = np.setdiff1d(np.arange(len(lengths)), out)
    if not len(kept):
        raise fail("data", longest, path=("too_long",), help="set seq_len higher")
    return kept
