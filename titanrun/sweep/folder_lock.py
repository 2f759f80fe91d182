"""Locks of a sweep's folder, and the processes that work on a search in it."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from titanrun.config.problems import problem_error
from titanrun.recipe.rundir.run_files import read_json_or_empty, write_indented_json
from titanrun.runs.run_state import get_host_info, is_run_directory_locked

LOCK = ".lock"
MACHINES = "machines"
HEARTBEAT_SECONDS = 30.0
# of a process on another machine, which nobody here can look at
SILENT_SECONDS = 600.0


@contextmanager
def lock_sweep_folder(folder: Path, *, is_shared: bool = False) -> Iterator[None]:
    """Lock the sweep's folder. Raise ProblemsFound if another process holds the lock.

    The processes of a search share the lock.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise problem_error(
                "conflict",
                f"another sweep is running in '{folder}'",
                hint="wait for it, or use another folder",
            ) from None
        yield


@contextmanager
def wait_for_search_lock(folder: Path) -> Iterator[None]:
    """Wait for the lock under which the processes of a search draw and record, one at a time."""
    with (folder / ".search.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(slots=True)
class SearchProcess:
    """This process, as the other processes of a search see it: a locked file with a heartbeat.

    Args:
        folder: The sweep's folder.
        name: Name of this process. The default has the host and the process id. A process that is
            started again under its name goes on with its trial.
    """

    folder: Path
    name: str = ""
    _file: IO[bytes] = field(init=False)
    _beat: float = field(init=False)

    def __post_init__(self) -> None:
        info = get_host_info()
        self.name = self.name or f"{re.sub(r'[^A-Za-z0-9_.-]', '_', info.host)}-{os.getpid()}"
        path = get_process_file(self.folder, self.name)
        path.parent.mkdir(exist_ok=True)
        write_indented_json(path, {"host": info.host, "boot_id": info.boot_id, "pid": os.getpid()})
        self._file = path.open("rb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._beat = time.monotonic()

    def beat(self) -> None:
        """Tell other machines that this process is alive, not more often than needed."""
        if time.monotonic() - self._beat >= HEARTBEAT_SECONDS:
            self._beat = time.monotonic()
            os.utime(get_process_file(self.folder, self.name))

    def close(self) -> None:
        """Give up what this process has not finished."""
        get_process_file(self.folder, self.name).unlink(missing_ok=True)
        self._file.close()


def get_process_file(folder: Path, name: str) -> Path:
    """Return the file of a process that works on a search."""
    return folder / MACHINES / f"{name}.json"


def forget_search_processes(folder: Path, pattern: str) -> None:
    """Forget processes whose names match a glob pattern, because they are known to be dead."""
    for path in (folder / MACHINES).glob(f"{pattern}.json"):
        path.unlink(missing_ok=True)


def is_search_process_alive(folder: Path, name: str) -> bool:
    """Return whether a process still works on a search.

    On this machine it holds the lock of its file; on another one its heartbeat is recent.
    """
    path = get_process_file(folder, name)
    try:
        age = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return False
    return is_run_directory_locked(path) if is_here(path) else age < SILENT_SECONDS


def is_here(path: Path) -> bool:
    """Return whether the process of a file runs, or ran, on this machine since it was booted."""
    info, known = get_host_info(), read_json_or_empty(path)
    return known.get("host") == info.host and known.get("boot_id") == info.boot_id


def list_other_machines(folder: Path) -> list[str]:
    """Return the live processes of a search on other machines."""
    files = sorted((folder / MACHINES).glob("*.json"))
    return [
        path.stem
        for path in files
        if not is_here(path) and is_search_process_alive(folder, path.stem)
    ]
