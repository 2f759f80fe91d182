"""Conversations as token ids, and which of them the model learns to say; imported only when an index must be built."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chat_layouts import LAYOUTS, Columns
from titanrun.components.data.coded import BEGINS, CODES, COUNTS
from titanrun.components.data.records import Placed, read_records
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate, Message, Span, spans_of_replies
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, PlacedIds
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

TrainOn = Literal["replies", "last_reply", "all"]
ENCODED_TOGETHER = 512
"""Conversations that are tokenised at a time, all processors sharing them."""


@dataclass(frozen=True, slots=True)
class ConversationWriter:
    """Writes the conversations of files into an index, one after the other.

    Each token is one number, coded as coded.py says.
    """

    layout: str
    columns: Columns
    template: ChatTemplate
    train_on: TrainOn
    tokenizer: ChatTokenizer

    def write(self, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        """Writes them; returns how many there were. Raises a data problem where one cannot be read or has nothing to learn."""
        records, count = read_records(files, scratch=scratch), 0
        while batch := list(islice(records, ENCODED_TOGETHER)):
            for numbers in self.coded(batch):
                writer.write(numbers)
                count += 1
            sign_of_life()
        return count

    def coded(self, records: Iterable[Placed]) -> Iterator[NDArray[np.int64]]:
        """The numbers of each conversation."""
        texts, spans, places = [], [], []
        for place, record in records:
            text, counted = self.text_and_spans(LAYOUTS[self.layout](record, self.columns, place), place)
            texts.append(text)
            spans.append(counted)
            places.append(place)
        for place, placed, counted in zip(places, self.tokenizer.encode_placed(texts), spans, strict=True):
            yield coded(placed, counted, place)

    def text_and_spans(self, messages: list[Message], place: str) -> tuple[str, list[Span]]:
        """The text of a conversation, and the parts of it that count."""
        if self.train_on == "all":
            text = self.template.render(messages)
            return text, [(0, len(text))]
        text, spans = self.template.render_marked(messages)
        replies = spans or spans_of_replies(self.template, messages, text, place)
        return text, replies[-1:] if self.train_on == "last_reply" else replies


def coded(placed: PlacedIds, spans: Sequence[Span], place: str) -> NDArray[np.int64]:
    """The numbers of one conversation. A token counts where it stands for a character of a span, as in transformers' assistant mask.

    The first one never does: nothing comes before it that it could be told from.
    """
    ids, offsets = placed
    starts, ends = (np.array([offset[side] for offset in offsets], dtype=np.int64) for side in (0, 1))
    counted = np.zeros(len(ids), dtype=np.int64)
    for start, end in spans:
        counted |= (ends > start) & (starts < end)
    counted[:1] = 0
    if not counted.any():
        raise fail("data", f"{place} has nothing that the assistant says", path=("path",), help="leave such conversations out")
    numbers = np.array(ids, dtype=np.int64) * CODES + counted * COUNTS
    numbers[0] += BEGINS
    return numbers
