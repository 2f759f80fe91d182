"""Processes with torch that answer one command."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# ends by itself if nobody ends it, long after the test has failed
WORKER = "#!/bin/sh\nexec 3>{fifo}\necho up >&3\nexec sleep 600\n"
COMMAND = """
import sys
from titanrun.launch.worker_command import run_worker_command
sys.executable = {program!r}
run_worker_command("data", {{}})
"""
WAIT_SECONDS = 60


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no process of its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_worker_of_a_command_ends_with_the_command(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Else `timeout 60 titanrun eval` leaves a process that keeps the accelerator."""
    fifo, program = tmp_path / "fifo", tmp_path / "worker"
    os.mkfifo(fifo)
    program.write_text(WORKER.format(fifo=fifo))
    program.chmod(0o755)
    command = subprocess.Popen([sys.executable, "-c", COMMAND.format(program=str(program))])
    with fifo.open("rb", buffering=0) as lines:
        assert lines.read(3) == b"up\n"
        command.send_signal(number)
        assert command.wait() == -number
        # the end of the file: the last process that has it open has ended
        assert select.select([lines], [], [], WAIT_SECONDS)[0]
        assert lines.read(1) == b""
