"""Conversations as token ids, and which of them the model learns to say; imported only when an index must be built."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from titanrun.components.data.chat_layouts import LAYOUTS
from titanrun.components.data.coded import BEGINS, CODES, COUNTS, with_weights
from titanrun.components.data.config import ChatDatasetConfig
from titanrun.components.data.learned import Spoken, spoken
from titanrun.components.data.records import Placed, read_records
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.tokenizer import ChatTokenizer, PlacedIds
from titanrun.config.problems import fail
from titanrun.distributed.liveness import sign_of_life

ENCODED_TOGETHER = 512
"""Records that are tokenised at a time, all processors sharing them."""


def write_spoken(
    records: Iterable[Placed],
    spoken_in: Callable[[Placed], Iterable[Spoken]],
    tokenizer: ChatTokenizer,
    writer: TokenWriter,
) -> int:
    """Writes the conversations of each record, one after the other, each coded as coded.py says; returns how many records there were."""
    stream, count = iter(records), 0
    while batch := [list(spoken_in(record)) for record in islice(stream, ENCODED_TOGETHER)]:
        count += len(batch)
        for numbers in encoded([one for of_record in batch for one in of_record], tokenizer):
            writer.write(numbers)
        sign_of_life()
    return count


def encoded(
    conversations: Sequence[Spoken], tokenizer: ChatTokenizer
) -> Iterator[NDArray[np.integer]]:
    """The numbers of each conversation."""
    for placed, one in zip(
        tokenizer.encode_placed([one.text for one in conversations]), conversations, strict=True
    ):
        yield coded(placed, one)


@dataclass(frozen=True, slots=True)
class ConversationWriter:
    """Writes the conversations of files into an index. With `turn_weights` some message must have one."""

    config: ChatDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer

    def write(self, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        """Writes them; returns how many there were. Raises a data problem where one cannot be read or has nothing to learn."""
        key, columns = self.config.turn_weights, self.config.columns()
        has_weights = False

        def spoken_in(record: Placed) -> list[Spoken]:
            nonlocal has_weights
            place, columns_of_record = record
            messages = LAYOUTS[self.config.layout](columns_of_record, columns, place)
            has_weights = has_weights or any(key in message for message in messages)
            return [spoken(self.config, self.template, messages, place)]

        count = write_spoken(
            read_records(files, scratch=scratch), spoken_in, self.tokenizer, writer
        )
        if count and key is not None and not has_weights:
            raise fail(
                "data",
                f"no message has a '{key}'",
                path=("turn_weights",),
                help="name the key that holds weights, or none",
            )
        return count


def coded(placed: PlacedIds, one: Spoken) -> NDArray[np.integer]:
    """The numbers of one conversation. A token counts where it stands for a character of a span, as in transformers' assistant mask; where
    it stands for characters of two, it has the higher weight.

    The first one never does: nothing comes before it that it could be told from.
    """
    ids, offsets = placed
    starts, ends = (
        np.array([offset[side] for offset in offsets], dtype=np.int64) for side in (0, 1)
    )
    weights = np.zeros(len(ids), dtype=np.float32)
    for (start, end), weight in zip(one.spans, one.weights or [1.0] * len(one.spans), strict=True):
        inside = (ends > start) & (starts < end)
        weights[inside] = np.maximum(weights[inside], np.float32(weight))
    weights[:1] = 0
    if not weights.any():
        whose = "the assistant says" if one.weights is None else "weighs anything"
        raise fail(
            "data",
            f"{one.place} has nothing that {whose}",
            path=("path",),
            help="leave such conversations out",
        )
    numbers = np.array(ids, dtype=np.int64) * CODES + (weights > 0) * COUNTS
    numbers[0] += BEGINS
    return numbers if one.weights is None else with_weights(numbers, weights)
