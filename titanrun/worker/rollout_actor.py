"""One process of an RL run's fleet as an actor of Ray, with the messages of `rollout_worker`.

Its owner imports this module, but needs no torch: only the actor itself imports it.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.distributed.rank_env import RankInfo
from titanrun.rl.fleet.rollout_messages import RolloutMessages, respond_problem

if TYPE_CHECKING:
    from titanrun.rl.weight_sync import object_store_transport
    from titanrun.worker import rollout_worker, worker_job
else:
    object_store_transport = LazyModule("titanrun.rl.weight_sync.object_store_transport")
    rollout_worker = LazyModule("titanrun.worker.rollout_worker")
    worker_job = LazyModule("titanrun.worker.worker_job")


class RolloutActor:
    """Lines of messages in both directions, and the loop between them.

    `run` and `read_response` need a thread each: they wait.

    Args:
        get: returns the object of a reference of the object store.
    """

    def __init__(self, get: Callable[[Any], Any]) -> None:
        self.weights = object_store_transport.ObjectStoreReader(get)
        (self._request_lines, self._requests), (self._response_lines, self._responses) = (
            (os.fdopen(reading, encoding="utf-8"), os.fdopen(writing, "w", encoding="utf-8"))
            for reading, writing in (os.pipe(), os.pipe())
        )
        self._has_run = False
        self._trainer, self._kept_line = "", ""

    def locate(self) -> tuple[int, str]:
        """Return the id of this process and the name of its machine."""
        return os.getpid(), platform.node()

    def attach(self, trainer: str) -> None:
        """Serve this trainer from now on, instead of an earlier one that has ended."""
        self._trainer = trainer
        self.send(json.dumps({"do": "hello", "token": trainer}), None, [])

    def send(self, line: str, key: int | None, references: Sequence[Any]) -> None:
        """Take a message. One about weights comes with their key and references to them."""
        if key is not None:
            self.weights.receive(key, references)
        self._requests.write(line + "\n")
        self._requests.flush()

    def read_response(self, trainer: str) -> str:
        """Wait for the next message to this trainer.

        It is empty after the last. What an earlier trainer waits for is left to the newest.
        """
        line, self._kept_line = self._kept_line or self._response_lines.readline(), ""
        if trainer != self._trainer:
            self._kept_line = line
            return ""
        return line

    def run(self, resolved_path: Path, resolved_text: str, number: int, folder: Path) -> None:
        """Serve trainers until one says `stop`. It returns at once if it has been called before.

        Args:
            resolved_path: file of the resolved recipe, which need not be on this machine.
            resolved_text: its content.
            number: number of this process in the fleet.
            folder: where relative paths of the recipe begin.
        """
        if self._has_run:
            return
        self._has_run = True
        messages = RolloutMessages(self._request_lines)
        with self._responses as responses:
            try:
                enter_folder(folder)
                redirect_output(resolved_path.parent / "logs" / f"generator-{number}.log")
                job = worker_job.WorkerJob(resolved_path, resolved_text, RankInfo())
                worker = rollout_worker.open_worker(job, number, messages, responses, self.weights)
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
