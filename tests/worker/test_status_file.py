import json
import os
from pathlib import Path

import jsonschema
import pytest

from titanrun.recipe.rundir.run_files import read_boot_id
from titanrun.recipe.schemas.output_schemas import build_status_schema
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
    assert "signal" not in read(status.path)
    status.set_state("preempted", step=7, exit_code=75, stop_signal="SIGINT")
    assert read(status.path)["signal"] == "SIGINT"
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_waits_are_written_while_the_run_goes_on(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.json")
    status.set_state("running", step=3)
    assert read(status.path)["waiting"] is None
    status.record_wait("'https://example.com/a.jsonl'", seconds=12.3)
    written = read(status.path)
    assert (written["state"], written["step"]) == ("running", 3)
    source = "'https://example.com/a.jsonl'"
    assert written["waiting"] == {"for": "data", "source": source, "seconds": 12}
    jsonschema.validate(written, build_status_schema())
    status.record_wait(None)
    assert read(status.path)["waiting"] is None
    status.record_wait("a", seconds=1.0)
    status.set_state("failed", exit_code=3)
    # the thread that watches may be late
    status.record_wait("a", seconds=2.0)
    written = read(status.path)
    assert (written["state"], written["waiting"], written["exit_code"]) == ("failed", None, 3)


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
