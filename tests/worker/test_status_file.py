import json
import os
from pathlib import Path

import pytest

from titanrun.recipe.rundir.run_files import read_boot_id
from titanrun.worker.status_file import StatusFile


def read(path: Path) -> dict[str, object]:
    return json.loads(path.read_text())


def test_the_file_says_who_does_what(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.json")
    status.set_state("starting")
    written = read(status.path)
    assert written["pid"] == os.getpid()
    assert written["boot_id"] == read_boot_id()
    assert (written["state"], written["step"], written["exit_code"]) == ("starting", 0, None)
    status.set_state("preempted", step=7, exit_code=75)
    assert (
        read(status.path)["state"],
        read(status.path)["step"],
        read(status.path)["exit_code"],
    ) == ("preempted", 7, 75)
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_steps_are_written_at_most_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    status = StatusFile(tmp_path / "status.json")
    steps = []
    for step, seconds in enumerate([0.0, 0.4, 0.5, 0.2, 0.9, 2.0], start=1):
        now[0] += seconds
        status.record_step(step)
        steps.append(read(status.path)["step"])
    assert steps == [1, 1, 1, 4, 4, 6]
    assert read(status.path)["state"] == "running"
