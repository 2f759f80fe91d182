"""The program of a process that tokenizes units."""

import logging
from multiprocessing import Pipe
from typing import NamedTuple

from titanrun.components.data.unit_process import run_unit_process
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer


class FinishedTask(NamedTuple):
    """A unit that is tokenized already."""

    def run(self, tokenizer: Tokenizer | None) -> None:
        """Nothing is left to do."""


def test_a_process_ends_in_silence_when_its_starter_was_killed_during_a_unit() -> None:
    starter, connection = Pipe()
    starter.send((logging.ERROR, None))
    starter.send(FinishedTask())
    starter.close()
    run_unit_process(connection)
