"""Main program of a process that tokenizes units of indexes.

It imports no torch, so that it starts fast and needs little memory.
"""

import logging
import sys
from multiprocessing.connection import Connection
from typing import NamedTuple

from titanrun.components.data.file_spans import FileSpan
from titanrun.components.data.token_units import UnitBuild
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.nested_problems import nest_problems
from titanrun.config.problems import DataPath, Problem, ProblemsFound


class UnitTask(NamedTuple):
    """Unit to tokenize: a span of the files of the dataset at a path in the recipe."""

    path: DataPath
    build: UnitBuild
    span: FileSpan

    def run(self, tokenizer: Tokenizer) -> None:
        """Tokenize the unit, unless it is tokenized."""
        with nest_problems(self.path):
            self.build.build_unit(self.span, tokenizer)


class UnitAnswer(NamedTuple):
    """End of a task. `problems` are mistakes of a user."""

    problems: tuple[Problem, ...] = ()


def run_unit_process(connection: Connection) -> None:
    """Tokenize units until the connection closes. Other errors than problems end the process."""
    level, tokenizer = connection.recv()
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("titanrun").setLevel(level)
    while (task := receive_task(connection)) is not None:
        answer = UnitAnswer()
        try:
            task.run(tokenizer)
        except ProblemsFound as error:
            answer = UnitAnswer(tuple(error.problems))
        if not send_answer(connection, answer):
            return


def receive_task(connection: Connection) -> UnitTask | None:
    """Return the next task, None if the starter closed the connection or is gone."""
    try:
        task: UnitTask = connection.recv()
    except (EOFError, OSError):
        return None
    return task


def send_answer(connection: Connection, answer: UnitAnswer) -> bool:
    """Return whether the starter can read the answer: it may have been killed meanwhile."""
    try:
        connection.send(answer)
    except OSError:
        return False
    return True


def main() -> None:
    """Tokenize units until the starter closes the connection, or is gone.

    The command line holds the descriptor of the connection.
    """
    connection = Connection(int(sys.argv[1]))
    # modules of plug-ins are found where the starter finds them
    sys.path[:] = connection.recv()
    run_unit_process(connection)
