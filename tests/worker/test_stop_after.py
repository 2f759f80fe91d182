"""A run that is asked to stop after a step has the schedule of its whole length, and goes on
afterwards."""

from collections.abc import Callable
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.worker.rank_main import main

Run = Callable[..., Path]


def test_it_stops_there_as_if_it_had_been_asked_to(
    run: Run,
    metrics: Callable[..., list[dict[str, float]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    resolved = run("run")
    monkeypatch.setenv("TITANRUN_STOP_AFTER", "4")
    assert main([str(resolved)]) == 75
    assert "stopped as planned after step 4 of 10, saved" in capsys.readouterr().err
    assert read_json_or_empty(resolved.parent / "status.json")["state"] == "preempted"
    monkeypatch.delenv("TITANRUN_STOP_AFTER")
    assert main([str(resolved)]) == 0
    numbers = [
        (line["step"], line["loss"], line["lr"])
        for line in read_metrics(resolved.parent / "metrics.jsonl")
    ]
    assert numbers == [(line["step"], line["loss"], line["lr"]) for line in metrics()]


def test_without_checkpoints_it_stops_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TITANRUN_STOP_AFTER", "1")
    assert main([str(run("run", "checkpoint.enable=false"))]) == 75
    assert "stopped as planned after step 1 of 10, nothing saved" in capsys.readouterr().err
