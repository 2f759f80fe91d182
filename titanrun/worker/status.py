"""status.json: what a worker is doing, for launchers, watchers and people, always a whole file."""

import json
import logging
import os
import socket
import time
from pathlib import Path
from typing import Literal

from titanrun.recipe.run_dir import boot_id, read_json

State = Literal["starting", "running", "finished", "preempted", "failed"]

HEARTBEAT_SECONDS = 1.0

log = logging.getLogger(__name__)


class StatusFile:
    """Writes status.json: at every change of state, and at most once a second while steps go by.

    Args:
        path: the file.
        is_first: whether this is the first rank. The others write only that they failed.
    """

    def __init__(self, path: Path, *, is_first: bool = True) -> None:
        self.path = path
        self.is_first = is_first
        self.state: State = "starting"
        # a start that fails before its first step does not know better than the one before it
        self.step = last_step(path)
        self._written = 0.0
        self._has_warned = False
        # who this is: a pid alone may belong to another process after a reboot or on another machine
        self._process = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": boot_id()}

    def beat(self, step: int) -> None:
        """Notes that `step` is done."""
        self.step = step
        if self.state != "running" or time.monotonic() - self._written >= HEARTBEAT_SECONDS:
            self.change("running")

    def change(
        self, state: State, *, step: int | None = None, exit_code: int | None = None
    ) -> None:
        """Writes the file with a new state, replacing the old one in one move."""
        self.state = state
        self.step = self.step if step is None else step
        if not self.is_first and state != "failed":
            return
        content = {
            "state": state,
            "step": self.step,
            **self._process,
            "heartbeat": time.time(),
            "exit_code": exit_code,
        }
        try:
            self._replace(json.dumps(content) + "\n")
        except OSError as error:
            # who watches the run sees an old heartbeat; the run itself goes on
            if not self._has_warned:
                log.warning("status.json cannot be written, training goes on: %s", error)
            self._has_warned = True
        self._written = time.monotonic()

    def _replace(self, text: str) -> None:
        part = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def last_step(path: Path) -> int:
    """The step in the status file of an earlier start; 0 where there is none that can be read."""
    step = read_json(path).get("step")
    return step if isinstance(step, int) else 0
