"""One process of an RL run's fleet as an actor of Ray, with the messages of `rollout_worker`."""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.rank_env import RankInfo
from titanrun.rl.fleet.rollout_messages import RolloutMessages
from titanrun.rl.weight_sync.object_store_transport import ObjectStoreReader
from titanrun.worker.rollout_worker import open_worker, respond_problem
from titanrun.worker.worker_job import WorkerJob


class RolloutActor:
    """Lines of messages in both directions, and the loop between them.

    `run` and `read_response` need a thread each: they wait.

    Args:
        get: returns the object of a reference of the object store.
    """

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self.weights = ObjectStoreReader(get)
        (self._request_lines, self._requests), (self._response_lines, self._responses) = (
            (os.fdopen(reading, encoding="utf-8"), os.fdopen(writing, "w", encoding="utf-8"))
            for reading, writing in (os.pipe(), os.pipe())
        )

    def locate(self) -> tuple[int, str]:
        """Return the id of this process and the name of its machine."""
        return os.getpid(), platform.node()

    def send(self, line: str, key: int | None, references: Sequence[Any]) -> None:
        """Take a message. One about weights comes with their key and references to them."""
        if key is not None:
            self.weights.receive(key, references)
        self._requests.write(line + "\n")
        self._requests.flush()

    def read_response(self) -> str:
        """Wait for the next message to the trainer. It is empty after the last."""
        return self._response_lines.readline()

    def run(self, resolved_path: Path, resolved_text: str, number: int, folder: Path) -> None:
        """Serve the trainer until it says `stop`.

        Args:
            resolved_path: file of the resolved recipe, which need not be on this machine.
            resolved_text: its content.
            number: number of this process in the fleet.
            folder: where relative paths of the recipe begin.
        """
        messages = RolloutMessages(self._request_lines)
        with self._responses as responses:
            try:
                enter_folder(folder)
                redirect_output(resolved_path.parent / "logs" / f"generator-{number}.log")
                job = WorkerJob(resolved_path, resolved_text, RankInfo())
                worker = open_worker(job, number, messages, responses, self.weights)
                messages.start(worker.end_soon)
                try:
                    worker.run()
                finally:
                    self.weights.close()
                    worker.close()
            except ProblemsFound as error:
                respond_problem(error, responses)


def enter_folder(folder: Path) -> None:
    """Change into the trainer's working folder.

    Raises:
        ProblemsFound: this machine does not have it.
    """
    try:
        os.chdir(folder)
    except OSError as error:
        raise problem_error(
            "data",
            f"the working folder of the trainer cannot be opened on {platform.node()}: {error}",
            hint="start the run in a folder that all machines share",
        ) from error


def redirect_output(file: Path) -> None:
    """Append what this process prints to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
