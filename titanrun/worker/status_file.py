"""status.json: the state of a worker for launchers, monitors and people.

The file is replaced atomically.
"""

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Literal

from titanrun.recipe.rundir.run_files import read_boot_id, read_json_or_empty
from titanrun.recipe.rundir.start_undo import accept_start

WorkerState = Literal["starting", "running", "finished", "preempted", "failed"]

HEARTBEAT_SECONDS = 1.0

log = logging.getLogger(__name__)


class StatusFile:
    """Writer of status.json at every change of state, and at most once a second during steps.

    Args:
        path: the file.
        is_main_rank: whether this is the first rank. Other ranks write only failures.
        is_in_group: whether this is one of several replica groups. It writes only while it writes
            the files of the run, and no failures, after which others may train on.
    """

    def __init__(self, path: Path, *, is_main_rank: bool = True, is_in_group: bool = False) -> None:
        self.path = path
        self.is_main_rank, self.is_in_group = is_main_rank, is_in_group
        self.is_writer = not is_in_group
        self.state: WorkerState = "starting"
        # a start that fails before its first step keeps the step of the previous start
        self.step = read_last_step(path)
        self._last_write_time = 0.0
        self._lock = threading.Lock()
        self._has_warned = False
        # a pid alone is ambiguous after a reboot or on another machine
        self._process_identity = {
            # a signal to the launcher of replica groups reaches all of them
            "pid": os.getppid() if is_in_group else os.getpid(),
            "host": socket.gethostname(),
            "boot_id": read_boot_id(),
        }

    def record_step(self, step: int) -> None:
        """Record that `step` is done."""
        self.step = step
        if self.state != "running" or time.monotonic() - self._last_write_time >= HEARTBEAT_SECONDS:
            self.set_state("running")

    def set_state(
        self,
        state: WorkerState,
        *,
        step: int | None = None,
        exit_code: int | None = None,
        stop_signal: str | None = None,
    ) -> None:
        """Write the file with a new state, replacing the old one atomically.

        `stop_signal` is the name of the signal that ended the run, if one did.
        """
        if self.state == "starting" and state not in ("starting", "failed"):
            accept_start(self.path.parent)
        with self._lock:
            self.state = state
            self.step = self.step if step is None else step
            self._write(exit_code=exit_code, stop_signal=stop_signal)

    def record_wait(self, source: str | None, *, seconds: float = 0.0) -> None:
        """Record that a rank waits for data from `source`, None once all go on.

        This is called by another thread, and changes nothing after the end of the run.
        """
        waiting = {"for": "data", "source": source, "seconds": round(seconds)}
        with self._lock:
            if self.state in ("starting", "running"):
                self._write(waiting=None if source is None else waiting)

    def _write(
        self,
        *,
        exit_code: int | None = None,
        stop_signal: str | None = None,
        waiting: dict[str, Any] | None = None,
    ) -> None:
        if not self._is_written(self.state):
            return
        content = {
            "state": self.state,
            "step": self.step,
            **self._process_identity,
            "heartbeat": time.time(),
            "waiting": waiting,
            "exit_code": exit_code,
            **({} if stop_signal is None else {"signal": stop_signal}),
        }
        try:
            self._write_atomically(json.dumps(content) + "\n")
        except OSError as error:
            # monitors see an old heartbeat, but the run continues
            if not self._has_warned:
                log.warning("cannot write status.json, training continues: %s", error)
            self._has_warned = True
        self._last_write_time = time.monotonic()

    def set_writer(self, is_writer: bool) -> None:
        """Set whether this process's group writes the files of the run."""
        self.is_writer = is_writer

    def _is_written(self, state: WorkerState) -> bool:
        if self.is_in_group:
            return self.is_main_rank and self.is_writer and state != "failed"
        return self.is_main_rank or state == "failed"

    def _write_atomically(self, text: str) -> None:
        part = self.path.with_name(f"{self.path.name}.tmp-{os.getpid()}")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)


def read_last_step(path: Path) -> int:
    """Return the step in the status file of an earlier start, 0 if there is no readable file."""
    step = read_json_or_empty(path).get("step")
    return step if isinstance(step, int) else 0
