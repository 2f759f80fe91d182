"""Rows 57 and 58: nobody can be told anything on the console."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import seams
from tests.faults.conftest import STEPS, Note, Run, digests
from tests.faults.processes import work
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.rundir.run_files import read_json_or_empty


def state_of(resolved: Path) -> object:
    return read_json_or_empty(resolved.parent / "status.json")["state"]


@pytest.mark.parametrize("kind", ["closed", "full"])
def test_row_57_a_console_that_cannot_be_written_costs_nothing(
    run: Run, uncut: Path, note: Note, kind: str
) -> None:
    resolved = run()
    assert work(resolved, seams.console_is, kind) == 0
    assert digests(resolved) == digests(uncut)
    assert state_of(resolved) == "finished"
    assert "finished: 10 steps" in (resolved.parent / "logs" / "rank-0.log").read_text()
    note(
        57,
        injected="stdout and stderr closed; on a full device (/dev/full); of the command too",
        outcome="training continues, exit 0, everything is in logs/; end bitwise equal",
        lost="nothing",
    )


def test_row_58_a_console_that_nobody_reads_stops_neither_steps_nor_saves(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    blocked = (seams.console_is, "blocked")
    stop = (seams.signals_amid_step, 5, signal.SIGTERM)
    assert work(resolved, seams.several, blocked, stop) == 75
    assert state_of(resolved) == "preempted"
    assert (resolved.parent / "checkpoint" / "step-5" / "manifest.json").exists()
    assert work(resolved, *blocked) == 0
    assert digests(resolved) == digests(uncut)
    assert len(read_metrics(resolved.parent / "metrics.jsonl")) == STEPS
    note(
        58,
        injected="stdout and stderr are a full pipe without a reader; with SIGTERM in step 5",
        outcome="exit 75 after the save of step 5, then trained to the end; end bitwise equal",
        lost="nothing",
    )


@pytest.mark.parametrize("target", [">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_row_57_the_command_that_starts_a_run_needs_no_console(run: Run, target: str) -> None:
    recipe = run().parents[1] / "recipe.yaml"
    folder = recipe.parent / "started"
    settings = (f"dump_folder={folder}", "training.steps=2", "lr_scheduler.warmup_steps=1")
    command = [sys.executable, "-m", "titanrun", "train", str(recipe), *settings]
    done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {target}', *command], check=False)
    assert done.returncode == 0
    assert state_of(folder / "resolved.yaml") == "finished"
