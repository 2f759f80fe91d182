from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.worker.main import main
from titanrun.worker.run_lock import run_lock
from titanrun.worker.status import StatusFile

Run = Callable[..., Path]


def test_a_second_process_is_refused_and_writes_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = run()
    with run_lock(resolved.parent):
        status = StatusFile(resolved.parent / "status.json")
        status.change("running", step=4)
        before = {path: path.read_bytes() for path in resolved.parent.iterdir()}
        assert main([str(resolved)]) == 2
        assert {path: path.read_bytes() for path in resolved.parent.iterdir()} == before
    error = capsys.readouterr().err
    assert "error[conflict/run-in-use]" in error
    holder = status._process
    assert f"is in use by process {holder['pid']} on {holder['host']}" in error


def test_the_lock_ends_with_its_holder(run: Run) -> None:
    resolved = run("run", "training.steps=2")
    with run_lock(resolved.parent):
        pass
    assert main([str(resolved)]) == 0
