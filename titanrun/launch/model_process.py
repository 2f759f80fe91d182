"""A process with torch that holds a model and keeps the console, for `serve` and `chat`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any


def run_model_process(module: str, job: Mapping[str, Any]) -> int:
    """Run `titanrun.worker.commands.<module>` with a job and return its exit code.

    Its stdin is that of this process, so the job comes through a pipe. Signals are passed on;
    Ctrl-C reaches it by itself.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    command = [sys.executable, "-m", f"titanrun.worker.commands.{module}", str(reader)]
    process = subprocess.Popen(command, pass_fds=[reader])
    os.close(reader)

    def pass_on(number: int, _: FrameType | None) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGINT, lambda number, frame: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        with os.fdopen(writer, "w") as file:
            json.dump(job, file)
    except BrokenPipeError:
        pass  # it has ended, with a message of its own
    code = process.wait()
    return code if code >= 0 else 128 - code
