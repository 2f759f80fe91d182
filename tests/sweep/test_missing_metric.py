"""A metric of a sweep that no run has logged is told below the table."""

from pathlib import Path

import pytest

from tests.sweep.test_archived_runs import RECIPE, write_run
from titanrun.cli import sweep as command


@pytest.mark.parametrize(
    ("metric", "state", "told"),
    [
        ("losss", "finished", "did you mean 'loss'?"),
        ("reward", "finished", "known metrics: loss"),
        ("losss", "preempted", ""),
        ("loss", "finished", ""),
    ],
)
def test_a_metric_that_no_finished_run_has_is_told_with_those_that_there_are(
    metric: str, state: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rates.yaml"
    file.write_text(
        f"version: 1\nrecipe: {RECIPE}\nmetric: {metric}\nfolder: {tmp_path / 'runs'}\n"
        "list: [{optimizer.lr: 0.001}]\n"
    )
    assert command.run([str(file), "--list"]) == 0
    name = capsys.readouterr().out.split(":")[0].split()[0]
    write_run(tmp_path / "runs" / name, state)
    assert command.run([str(file), "--table"]) == 0
    shown = capsys.readouterr()
    assert metric in shown.out
    assert told in shown.err and bool(told) == ("no run has logged" in shown.err)
