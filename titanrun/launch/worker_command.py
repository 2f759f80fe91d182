"""A process with torch that answers one command and ends with it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from titanrun.launch.worker_processes import set_parent_death_signal


def run_worker_command(
    module: str, request: Mapping[str, Any], *, stdout: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `titanrun.worker.commands.<module>` with a request on its stdin until it ends.

    Ctrl-C reaches it by itself. On Linux it also ends if this process is terminated or killed: it
    would keep its accelerator, or go on to write files that nobody waits for.

    Args:
        module: Module of titanrun.worker.commands, run as a program.
        request: What it reads from its stdin, as JSON.
        stdout: As in subprocess.run; None: that of this process.
    """
    sys.stdout.flush()
    return subprocess.run(
        [sys.executable, "-m", f"titanrun.worker.commands.{module}"],
        input=json.dumps(request),
        stdout=stdout,
        text=True,
        check=False,
        preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
    )
