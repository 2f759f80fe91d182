"""Named pipes through which a restarted trainer finds the processes of its fleet again."""

import errno
import fcntl
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from titanrun.config.json_text import parse_json

LOCK_FILE = "trainer.lock"


@dataclass(frozen=True, slots=True)
class NamedPipes:
    """Pipes of one process in a folder of the run, and a note of who has their other ends.

    Args:
        folder: the folder.
        name: name of the process in its fleet.
        lifeline: descriptor of a pipe that the launcher holds open. Only a process of the same
            launcher is found again.
    """

    folder: Path
    name: str
    lifeline: int

    @property
    def lock_file(self) -> Path:
        """File that a trainer locks as long as it lives."""
        return self.folder / LOCK_FILE

    def create(self) -> tuple[int, int]:
        """Create the pipes and return descriptors for a new process: of requests, of responses.

        It reads and writes both, so that its requests do not end with a trainer.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self._paths:
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        requests, responses = (os.open(path, os.O_RDWR) for path in self._paths)
        return requests, responses

    def connect(self) -> tuple[TextIO, TextIO] | None:
        """Open the ends of a trainer, or return None if no process has the others."""
        requests, responses = self._paths
        try:
            # it fails instead of waiting for a reader
            writing = os.open(requests, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENOENT):
                raise
            return None
        reading = os.open(responses, os.O_RDONLY | os.O_NONBLOCK)
        for descriptor in (writing, reading):
            os.set_blocking(descriptor, True)
        return (
            os.fdopen(writing, "w", encoding="utf-8"),
            os.fdopen(reading, encoding="utf-8", errors="replace"),
        )

    def write_note(self, pid: int) -> None:
        """Note the process for the next trainer."""
        self._note.write_text(json.dumps({"pid": pid, "lifeline": self._lifeline_id}))

    def find_pid(self) -> int | None:
        """Return the id of the process that an earlier trainer of this launcher started."""
        try:
            note = parse_json(self._note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        is_own = isinstance(note, dict) and note.get("lifeline") == self._lifeline_id
        return note["pid"] if is_own and isinstance(note.get("pid"), int) else None

    def remove(self) -> None:
        """Remove the pipes and the note."""
        for path in (*self._paths, self._note):
            path.unlink(missing_ok=True)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.folder / f"{self.name}.requests", self.folder / f"{self.name}.responses"

    @property
    def _note(self) -> Path:
        return self.folder / f"{self.name}.json"

    @property
    def _lifeline_id(self) -> int:
        return os.fstat(self.lifeline).st_ino


def lock_trainer(folder: Path) -> int:
    """Lock the folder as its trainer and return the descriptor of the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def wait_for_end(lifeline: int, lock_file: Path) -> None:
    """Wait until the launcher has ended, and the last trainer after it."""
    while os.read(lifeline, 1):
        pass
    with suppress(OSError), lock_file.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
