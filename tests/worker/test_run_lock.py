import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.recipe.rundir.run_lock import lock_run_directory
from titanrun.worker.rank_main import main
from titanrun.worker.status_file import StatusFile

Run = Callable[..., Path]


def test_a_second_process_is_refused_and_writes_nothing(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = run()
    with lock_run_directory(resolved.parent):
        status = StatusFile(resolved.parent / "status.json")
        status.set_state("running", step=4)
        before = {path: path.read_bytes() for path in resolved.parent.iterdir()}
        assert main([str(resolved)]) == 2
        assert {path: path.read_bytes() for path in resolved.parent.iterdir()} == before
    error = capsys.readouterr().err
    assert "error[conflict/run-in-use]" in error
    holder = status._process_identity
    assert f"is in use by process {holder['pid']} on {holder['host']}" in error


def test_the_lock_ends_with_its_holder(run: Run) -> None:
    resolved = run("run", "training.steps=2")
    with lock_run_directory(resolved.parent):
        pass
    assert main([str(resolved)]) == 0


def test_a_forked_process_that_outlives_its_parent_holds_no_lock(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from titanrun.recipe.rundir.run_lock import lock_run_directory
with lock_run_directory(Path(sys.argv[1])):
    if os.fork() == 0:
        os.write(1, b".")
        os.read(0, 1)
    os._exit(0)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    # the child ends with its input, however this test ends
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as parent:
        assert parent.stdin and parent.stdout
        assert parent.stdout.read(1) == b"."
        assert parent.wait(timeout=50) == 0
        with lock_run_directory(tmp_path):
            pass
        parent.stdin.close()
        assert parent.stdout.read(1) == b""
