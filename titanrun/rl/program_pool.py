"""Copies of an external program that answer at the same time."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.rl.json_subprocess import JsonSubprocess, NoResponseError

Answer = dict[str, Any] | NoResponseError


class ProgramPool:
    """Copies of a program, each of which gets its next message after its last answer.

    Args:
        count: Number of copies.
        log: File of the stderr of the first; others have their number in the name.
        options: Further arguments of each `JsonSubprocess`.
    """

    def __init__(self, count: int, *, log: Path, **options: Any) -> None:
        self.programs = [
            JsonSubprocess(log=get_log_file(log, number), **options)
            for number in range(1, count + 1)
        ]

    def request_all(self, messages: Sequence[Mapping[str, Any]]) -> list[Answer]:
        """Return the answer to each message, an error where there is none.

        Raises:
            ProblemsFound: A program cannot be started, or failed too often.
        """
        answers: list[Answer | None] = [None] * len(messages)
        # the iterator is shared: a program that is fast takes more
        upcoming = iter(enumerate(messages))
        if len(self.programs) == 1:
            answer_messages(self.programs[0], upcoming, answers)
        else:
            busy = self.programs[: len(messages)]
            with ThreadPoolExecutor(max(1, len(busy)), "program") as threads:
                answer = partial(answer_messages, upcoming=upcoming, answers=answers)
                list(threads.map(answer, busy))
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        """Stop all copies."""
        for program in self.programs:
            program.close()


def answer_messages(
    program: JsonSubprocess,
    upcoming: Iterator[tuple[int, Mapping[str, Any]]],
    answers: list[Answer | None],
) -> None:
    """Ask a program for the answers to messages until none is left."""
    for index, message in upcoming:
        try:
            answers[index] = program.request(message)
        except NoResponseError as error:
            answers[index] = error


def get_log_file(log: Path, number: int) -> Path:
    """Return the file of the stderr of a copy, numbered from 1."""
    return log if number == 1 else log.with_name(f"{log.stem}-process-{number}{log.suffix}")
