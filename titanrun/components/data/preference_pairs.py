"""Pairs of conversations as token ids, and which of them are compared; imported only when an index must be built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chat_layouts import ROLES, Message, listed, role_of, text_of, value_of
from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.conversations import ENCODED_TOGETHER, coded
from titanrun.components.data.records import Placed, read_records
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, Span, spans_of_replies
from titanrun.components.tokenizers.tokenizer import ChatTokenizer
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

Pair = tuple[list[Message], list[Message]]


@dataclass(frozen=True, slots=True)
class PairWriter:
    """Writes the pairs of files into an index, each as two conversations coded as coded.py says. What counts is the last reply of each."""

    config: PreferenceDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer

    def write(self, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        """Writes them; returns how many pairs there were. Raises a data problem where one cannot be read, or has nothing to compare."""
        records, count = read_records(files, scratch=scratch), 0
        while batch := list(islice(records, ENCODED_TOGETHER)):
            for numbers in self.coded(batch):
                writer.write(numbers)
            count += len(batch)
            sign_of_life()
        return count

    def coded(self, records: Sequence[Placed]) -> Iterator[NDArray[np.int64]]:
        """The numbers of each conversation, two a record."""
        texts, spans, places = [], [], []
        for place, record in records:
            for messages in pair_in(self.config, record, place):
                text, counted = self.text_and_spans(messages, place)
                texts.append(text)
                spans.append(counted)
                places.append(place)
        for place, placed, counted in zip(places, self.tokenizer.encode_placed(texts), spans, strict=True):
            yield coded(placed, counted, place)

    def text_and_spans(self, messages: list[Message], place: str) -> tuple[str, list[Span]]:
        """The text of a conversation, and where its last reply stands."""
        text, spans = self.template.render_marked(messages)
        return text, (spans or spans_of_replies(self.template, messages, text, place))[-1:]


def pair_in(config: PreferenceDatasetConfig, record: Any, place: str) -> Pair:
    """The preferred conversation of a record, and the other one.

    Both columns hold either a reply to what the prompt asks, as text or as a list of messages, or, where the record has no prompt, whole
    conversations.
    """
    asked = prompt_in(config, record, place)
    chosen = replies_in(record, config.chosen_column, "chosen_column", place, is_whole=not asked)
    rejected = replies_in(record, config.rejected_column, "rejected_column", place, is_whole=not asked)
    if chosen == rejected:
        raise fail("data", f"{place} prefers a reply to itself", path=("path",), help="leave such pairs out")
    for messages in (chosen, rejected):
        if messages[-1]["role"] != "assistant":
            raise fail("data", f"{place} does not end with what the assistant says", path=("path",), help="leave such pairs out")
    return [*asked, *chosen], [*asked, *rejected]


def prompt_in(config: PreferenceDatasetConfig, record: Any, place: str) -> list[Message]:
    """What was said before both replies; nothing where the record has no prompt."""
    if record.get(config.prompt_column) is None:
        return []
    if isinstance(record[config.prompt_column], str):
        return [{"role": "user", "content": text_of(record, config.prompt_column, place, field="prompt_column")}]
    return messages_in(record, config.prompt_column, place)


def replies_in(record: Any, column: str, field: str, place: str, *, is_whole: bool) -> list[Message]:
    """The messages in one of the two columns; a text is what the assistant says."""
    if not isinstance(value_of(record, column, place, field=field), str):
        return messages_in(record, column, place)
    if is_whole:
        message = f"{place} has a text in '{column}', and no prompt that it answers"
        raise fail("data", message, path=("prompt_column",), help="name the column of the prompt, or write lists of messages")
    return [{"role": "assistant", "content": text_of(record, column, place, field=field)}]


def messages_in(record: Any, column: str, place: str) -> list[Message]:
    """A list of messages with role and content."""
    found = []
    for number, message in enumerate(listed(record, column, place), start=1):
        where = f"{place}, '{column}' message {number},"
        found.append({"role": role_of(message.get("role"), ROLES, where), "content": text_of(message, "content", where)})
    return found
