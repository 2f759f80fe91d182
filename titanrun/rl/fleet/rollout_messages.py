"""Messages of the trainer to a process of its fleet, read by a thread."""

import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from titanrun.config.problems import ProblemsFound


@dataclass(slots=True)
class RolloutMessages:
    """Messages that have come and that nobody has handled yet.

    Args:
        requests: lines of JSON.
    """

    requests: TextIO
    _queue: "queue.Queue[dict[str, Any] | None]" = field(default_factory=queue.Queue)
    _kept: deque[dict[str, Any] | None] = field(default_factory=deque)

    def start(self, on_end: Callable[[], None]) -> None:
        """Start to read.

        Args:
            on_end: called in the reading thread after the last line.
        """
        threading.Thread(target=self._read, args=(on_end,), daemon=True).start()

    def iter_new(self, *, should_wait: bool) -> Iterator[dict[str, Any] | None]:
        """Yield what has come, None for the end.

        Args:
            should_wait: whether to wait for the first message.
        """
        if should_wait and not self._kept:
            self._kept.append(self._queue.get())
        self._fetch()
        while self._kept:
            yield self._kept.popleft()

    def take_weights(self) -> dict[str, Any] | None:
        """Return the newest message about weights and forget all of them, or return None.

        Others stay. Weights that came before groups are so loaded before them, as they must be.
        """
        self._fetch()
        found = [message for message in self._kept if message and message["do"] == "load"]
        if not found:
            return None
        self._kept = deque(
            message for message in self._kept if message is None or message["do"] != "load"
        )
        return found[-1]

    def _fetch(self) -> None:
        while not self._queue.empty():
            self._kept.append(self._queue.get())

    def _read(self, on_end: Callable[[], None]) -> None:
        for line in self.requests:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the trainer was killed within the line
            if message["do"] == "stop":
                break
            self._queue.put(message)
        self._queue.put(None)
        on_end()


def respond_problem(error: ProblemsFound, responses: TextIO) -> None:
    """Send the first problem to the trainer."""
    problem = error.problems[0]
    write_message({"problem": problem.message, "hint": problem.hint}, responses)


def write_message(message: dict[str, Any], responses: TextIO) -> None:
    """Write a message to the trainer."""
    responses.write(json.dumps(message) + "\n")
    responses.flush()


def is_ongoing(group: Mapping[str, Any]) -> bool:
    """Return whether a group, given as plain data, has conversations that go on."""
    return any(rollout["status"] == "ongoing" for rollout in group["rollouts"])


def count_done_groups(message: Mapping[str, Any]) -> int:
    """Return how many groups a message of a process brings to their end."""
    return sum(not is_ongoing(group) for group in message.get("groups", ()))
