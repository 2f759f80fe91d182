"""What `runs show` says of a run of replica groups."""

import json
from pathlib import Path

import pytest

from tests.cli.test_runs import make_run
from titanrun.cli.runs import run as runs
from titanrun.runs.group_events import format_steps


def write_events(run: Path, group: int, *events: tuple[str, int]) -> None:
    lines = [json.dumps({"event": name, "step": step, "groups": 2}) for name, step in events]
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / f"group-{group}.jsonl").write_text("\n".join(lines) + '\n{"event": "comm')


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of eight steps whose second group trained 3 and 4 while the first one was away."""
    run = make_run(tmp_path / "run", losses=(2.0,) * 8, overrides=("metrics.log_freq=1",))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2] + lines[4:7]))
    write_events(run, 0, ("joined", 0), *(("trained", n) for n in (1, 2)), ("joined", 4))
    trained = [("trained", step) for step in range(1, 9)]
    write_events(run, 1, ("joined", 0), *trained, ("retried", 3), ("healed", 4))
    # the log of a rank, which is none of events
    (run / "logs" / "group-1-rank-0.jsonl").write_text("")
    return run


def test_steps_without_metrics_and_what_groups_did_are_named(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs(["show", str(run)]) == 0
    said = capsys.readouterr().out
    assert "group 0: joined 2; group 1: joined 1, healed 1, retried 1" in said
    # the eighth step is not missed: its line may be on its way
    assert "lost metrics     steps 3-4, with the group that logged" in said
    assert runs(["show", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unlogged_steps"] == [3, 4]


def test_steps_that_are_not_logged_are_not_missed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (run / "resolved.yaml").read_text()
    assert "log_freq: 1\n" in text
    (run / "resolved.yaml").write_text(text.replace("log_freq: 1\n", "log_freq: 4\n"))
    assert runs(["show", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["unlogged_steps"] == [4]


def test_a_run_without_groups_says_nothing_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs(["show", str(make_run(tmp_path / "run"))]) == 0
    said = capsys.readouterr().out
    assert "replica groups" not in said and "lost metrics" not in said


def test_steps_that_follow_each_other_are_one_range() -> None:
    assert format_steps([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
