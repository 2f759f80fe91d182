"""Commands that outlive the process that started them, and that signals always reach."""

import os
import subprocess
import sys
from pathlib import Path

# the signal arrives when the command has begun and the process around it does not know it yet
INTERRUPTED = """
import os, signal, subprocess, sys
from titanrun.launch import recorded_command

class Interrupted(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Interrupted
recorded_command.COMMAND = (sys.executable, "-c", "import time; time.sleep(600)")
sys.exit(recorded_command.main())
"""


def test_a_signal_while_the_command_starts_ends_the_command(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(writer)]
    with subprocess.Popen(words, pass_fds=[writer]) as process:
        os.close(writer)
        assert process.wait(60) == 143
    # the end of the pipe: no process is left that holds the other one
    with os.fdopen(reader) as file:
        assert file.read() == ""
    assert (tmp_path / "exit_code").read_text() == "143"
