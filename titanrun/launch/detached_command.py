"""Commands of titanrun in processes of their own, which outlive the one that started them."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

COMMAND = (sys.executable, "-m", "titanrun")


def start_detached_command(
    arguments: Sequence[str], *, cwd: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start `titanrun ARGUMENTS` in a session of its own, with its output in a file.

    No shell takes part, and the end of this process does not end it.
    """
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
