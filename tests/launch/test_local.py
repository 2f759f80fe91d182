import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.local import HELD_BACK, start


def test_signals_wait_while_the_worker_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[set[int]] = []
    monkeypatch.setattr(os, "execve", lambda *_: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        start(LocalLaunchConfig(), resolved=Path("resolved.yaml"), processes=1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked[0] >= set(HELD_BACK)


def test_a_signal_before_the_worker_listens_is_no_traceback() -> None:
    code = (
        "import os, signal; from pathlib import Path; from titanrun.launch import local; from titanrun.launch.config import *\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, local.HELD_BACK); os.kill(os.getpid(), signal.SIGINT)\n"
        "local.start(LocalLaunchConfig(), resolved=Path('nowhere.yaml'), processes=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # the worker lived to say what it thinks of its argument
    assert (done.returncode, done.stderr) == (2, "usage: python -m titanrun.worker <run dir>/resolved.yaml | --join\n")
