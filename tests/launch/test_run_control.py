"""Requests to a run: only the process that trains it gets a signal."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.launch.run_control import request_save, request_stop, wait_until_ended
from titanrun.recipe.rundir.run_files import read_boot_id

# a process that holds the lock, and writes down which signals it got
TRAINER = """
import fcntl, json, os, signal, socket, sys
from pathlib import Path
run = Path(sys.argv[1])
got = []
def note(number, frame):
    got.append(signal.Signals(number).name)
    (run / "got.json").write_text(json.dumps(got))
    if number == signal.SIGTERM or got.count("SIGINT") == 2:
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
    signal.signal(number, note)
lock = (run / ".lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("ready", flush=True)
while True:
    signal.pause()
"""


def write_status(run: Path, **changes: object) -> None:
    status = {"state": "running", "host": socket.gethostname(), "boot_id": read_boot_id()}
    (run / "status.json").write_text(json.dumps({**status, **changes}))


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", TRAINER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    write_status(tmp_path, pid=process.pid)
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def read_signals(run: Path) -> list[str]:
    return list(json.loads((run / "got.json").read_text()))


def test_a_stop_is_one_sigterm_and_ends_when_the_lock_is_free(
    trainer: subprocess.Popen[str], tmp_path: Path
) -> None:
    request_stop(tmp_path)
    assert wait_until_ended(tmp_path, 10) == "running"
    assert (trainer.wait(10), read_signals(tmp_path)) == (75, ["SIGTERM"])


def test_an_immediate_stop_interrupts_until_the_run_is_gone(
    trainer: subprocess.Popen[str], tmp_path: Path
) -> None:
    request_stop(tmp_path, should_save=False)
    assert trainer.wait(10) == 75
    assert read_signals(tmp_path) == ["SIGINT", "SIGINT"]


def test_a_save_is_one_sigusr2(trainer: subprocess.Popen[str], tmp_path: Path) -> None:
    request_save(tmp_path)
    request_stop(tmp_path)
    trainer.wait(10)
    assert sorted(read_signals(tmp_path)) == ["SIGTERM", "SIGUSR2"]


def test_nobody_else_gets_a_signal(trainer: subprocess.Popen[str], tmp_path: Path) -> None:
    write_status(tmp_path, pid=os.getpid())
    with pytest.raises(ProblemsFound, match="does not train the run"):
        request_stop(tmp_path)
    write_status(tmp_path, pid=trainer.pid, host="elsewhere")
    with pytest.raises(ProblemsFound, match="trains on elsewhere"):
        request_stop(tmp_path)
    write_status(tmp_path, pid=trainer.pid, boot_id="another boot")
    with pytest.raises(ProblemsFound, match="trains on"):
        request_stop(tmp_path)
    write_status(tmp_path, pid=trainer.pid, state="finished")
    with pytest.raises(ProblemsFound, match="no run is training"):
        request_stop(tmp_path)
    write_status(tmp_path, pid=trainer.pid)
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    with pytest.raises(ProblemsFound, match="no run is training"):
        request_stop(tmp_path)
