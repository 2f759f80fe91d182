"""Commands of titanrun in processes of their own, which outlive the one that started them."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

COMMAND = (sys.executable, "-m", "titanrun")
OUTPUT = "output.log"
STDOUT = "stdout.txt"
EXIT_CODE = "exit_code"
LOCK = "lock"


def start_detached_command(
    arguments: Sequence[str],
    *,
    cwd: Path,
    folder: Path,
    environment: Mapping[str, str],
    splits_output: bool = False,
) -> subprocess.Popen[bytes]:
    """Start `titanrun ARGUMENTS` in a session of its own, with its output and its end in a folder.

    No shell takes part, and the end of this process does not end it.

    Args:
        arguments: Words of the command line.
        cwd: Where it runs.
        folder: What it prints goes to a file of this folder, and then its exit code.
        environment: Its environment variables.
        splits_output: Whether stdout gets a file of its own.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stdout = folder / (STDOUT if splits_output else OUTPUT)
    with (
        (folder / LOCK).open("wb") as lock,
        (folder / OUTPUT).open("ab") as output,
        stdout.open("ab") as printed,
    ):
        # taken here, so that nobody finds it free before the command has begun
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        program = [sys.executable, "-m", "titanrun.launch.recorded_command"]
        return subprocess.Popen(
            [*program, str(folder), str(lock.fileno()), *arguments],
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=output,
            start_new_session=True,
            pass_fds=[lock.fileno()],
        )


def is_command_running(folder: Path) -> bool:
    """Return whether the command of a folder has not ended yet."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def read_exit_code(folder: Path) -> int | None:
    """Return the exit code of a command, or None if it has not ended, or nobody saw its end."""
    try:
        return int((folder / EXIT_CODE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
