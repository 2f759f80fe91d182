"""Messages to a generator that are not sent yet."""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outbox:
    """Messages in their order, of those about weights only the newest.

    That one takes the place of the first, so that weights are never behind groups that came after
    them, and a slow network carries no weights that have a successor.
    """

    _messages: deque[Mapping[str, Any]] = field(default_factory=deque)
    _is_closed: bool = False
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def put(self, message: Mapping[str, Any]) -> None:
        """Add a message."""
        with self._condition:
            for index, waiting in enumerate(self._messages):
                if message["do"] == waiting["do"] == "load":
                    self._messages[index] = message
                    return
            self._messages.append(message)
            self._condition.notify()

    def take(self) -> Mapping[str, Any] | None:
        """Wait for the next message and return it, or return None after the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._messages or self._is_closed)
            return None if self._is_closed else self._messages.popleft()

    def close(self) -> None:
        """End: what waits is never sent."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
