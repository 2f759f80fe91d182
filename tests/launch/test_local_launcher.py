import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.launch import local_launcher
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.local_launcher import run_with_restarts, start_local_run


def test_signals_wait_while_the_worker_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[set[int]] = []

    # as the real one this never comes back: what follows it would start workers
    def execve(*_: object) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        raise SystemExit

    monkeypatch.setattr(os, "execve", execve)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with pytest.raises(SystemExit):
            start_local_run(LocalLaunchConfig(), resolved=Path("resolved.yaml"), processes=1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert blocked[0] >= set(list_run_signals())


def test_no_test_replaces_the_process_of_all_tests() -> None:
    """A refusal that is gone made `train` replace pytest, which ended as well as the run did."""
    with pytest.raises(pytest.fail.Exception, match="would replace the process"):
        # without the guard in conftest.py, the tests end with this exit code
        os.execve(sys.executable, [sys.executable, "-c", "raise SystemExit(1)"], {})


def test_a_signal_before_the_worker_listens_is_no_traceback() -> None:
    code = (
        "import os, signal; from pathlib import Path; from titanrun.launch import "
        "local_launcher as local; from titanrun.distributed.spec import run_signals; from "
        "titanrun.launch.config import *\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, run_signals.list_run_signals()); "
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "local.start_local_run(LocalLaunchConfig(), resolved=Path('nowhere.yaml'), processes=1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    # the worker lived to say what it thinks of its argument
    assert (done.returncode, done.stderr) == (
        2,
        "usage: python -m titanrun.worker <run dir>/resolved.yaml | --join\n",
    )


def test_restarts_end_where_they_bring_no_new_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    starts: list[int] = []

    def die() -> int:
        starts.append(len(starts))
        return 128 + signal.SIGKILL

    assert run_with_restarts(die, tmp_path, 3) == 128 + signal.SIGKILL
    assert len(starts) == 1 + 3
    assert "3 restarts without a new checkpoint: giving up" in capsys.readouterr().err


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_run_is_started_again_as_often_as_its_recipe_says(
    max_restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []

    def die(resolved: Path, processes: int, **_: object) -> int:
        starts.append(processes)
        return 128 + signal.SIGKILL

    monkeypatch.setattr(local_launcher, "run_workers", die)
    config = LocalLaunchConfig(max_restarts=max_restarts)
    code = start_local_run(config, resolved=tmp_path / "resolved.yaml", processes=2)
    assert (code, starts) == (128 + signal.SIGKILL, [2] * (1 + max_restarts))


def test_a_new_checkpoint_is_worth_as_many_restarts_again(tmp_path: Path) -> None:
    codes = [70, 6, 70, 70, 70, 0]
    saves = iter([3, 6, 9, 12, 15, None])

    def run() -> int:
        if (step := next(saves)) is not None:
            folder = tmp_path / "checkpoint" / f"step-{step}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").touch()
        return codes.pop(0)

    assert run_with_restarts(run, tmp_path, 1) == 0
    assert codes == []


@pytest.mark.parametrize("code", [0, 2, 3, 4, 5, 7, 75, 130, 128 + signal.SIGTERM])
def test_what_another_start_would_meet_again_is_not_started_again(
    tmp_path: Path, code: int
) -> None:
    codes = [code]
    assert run_with_restarts(lambda: codes.pop(0), tmp_path, 3) == code


@pytest.mark.parametrize("code", [6, 8, 70, 128 + signal.SIGKILL])
def test_a_hang_a_lost_lighthouse_a_fault_and_a_kill_are_started_again(
    tmp_path: Path, code: int
) -> None:
    codes = [code, 0]
    assert run_with_restarts(lambda: codes.pop(0), tmp_path, 1) == 0


def test_nothing_is_started_again_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [70]
    assert run_with_restarts(lambda: codes.pop(0), tmp_path, 0) == 70
    assert capsys.readouterr().err == ""
