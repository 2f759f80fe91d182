"""A run that leaves nothing behind, whatever ends it."""

import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.rl.fleet_runs import is_running
from titanrun.rl.weight_sync.shared_memory_blocks import get_shared_memory_folder

MARK = "WATCHED_RUN"
# seconds on a machine that does nothing else
MAX_SECONDS = 300.0


@dataclass
class WatchedRun:
    """A run whose processes all have a mark in their environment, and a temporary folder.

    `seen` are all that were alive when somebody looked.
    """

    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    seen: set[int] = field(default_factory=set)
    process: "subprocess.Popen[str] | None" = None

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, MARK: self.mark, "TMPDIR": str(self.folder)}

    def start(self, command: Sequence[str], cwd: Path | None = None) -> "subprocess.Popen[str]":
        self.process = subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
        )
        return self.process

    def list_processes(self) -> list[int]:
        words, found = f"{MARK}={self.mark}".encode(), []
        for file in Path("/proc").glob("[0-9]*/environ"):
            pid = int(file.parent.name)
            try:
                is_own = words in file.read_bytes().split(b"\0")
            except OSError:
                continue
            if is_own and is_running(pid):
                found.append(pid)
        self.seen.update(found)
        return found

    def list_files(self) -> list[Path]:
        """The files in the temporary folder, and the shared memory of processes that were seen."""
        shared = [
            path
            for path in get_shared_memory_folder().iterdir()
            if any(str(pid) in path.name.replace("_", "-").split("-") for pid in self.seen)
        ]
        return [*self.folder.iterdir(), *shared]

    def check_nothing_is_left(self, seconds: float = MAX_SECONDS) -> None:
        end = time.monotonic() + seconds
        while (left := [*self.list_processes(), *self.list_files()]) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, [describe(each) for each in left]


@contextmanager
def watch_run() -> Iterator[WatchedRun]:
    """Give a run that is killed in the end."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="watched-") as folder:
        run = WatchedRun(Path(folder))
        try:
            yield run
        finally:
            for pid in run.list_processes():
                os.kill(pid, 9)
            if run.process is not None:
                run.process.communicate()


def describe(left: int | Path) -> str:
    if isinstance(left, Path):
        return str(left)
    return Path(f"/proc/{left}/cmdline").read_text().replace("\0", " ")[:300]
