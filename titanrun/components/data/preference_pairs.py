"""Pairs of conversations as token ids, and which of them are compared; imported only when an index must be built."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.components.data.config import PreferenceDatasetConfig
from titanrun.components.data.conversations import write_spoken
from titanrun.components.data.learned import Spoken, last_reply
from titanrun.components.data.pair_layouts import pair_in
from titanrun.components.data.records import Placed, read_records
from titanrun.components.data.token_writer import TokenWriter
from titanrun.components.tokenizers.chat_template import ChatTemplate
from titanrun.components.tokenizers.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class PairWriter:
    """Writes the pairs of files into an index, each as two conversations coded as coded.py says. What counts is the last reply of each."""

    config: PreferenceDatasetConfig
    template: ChatTemplate
    tokenizer: ChatTokenizer

    def write(self, files: Sequence[Path], writer: TokenWriter, scratch: Path) -> int:
        """Writes them; returns how many pairs there were. Raises a data problem where one cannot be read, or has nothing to compare."""
        return write_spoken(
            read_records(files, scratch=scratch), self.spoken_in, self.tokenizer, writer
        )

    def spoken_in(self, placed: Placed) -> Iterator[Spoken]:
        """Both conversations of a record."""
        place, record = placed
        for messages in pair_in(self.config, record, place):
            yield last_reply(self.template, messages, place)
