"""Rows 20 to 23, 55 and 56: a run is asked to end."""

import signal
from pathlib import Path

import pytest

from tests.faults import seams
from tests.faults.conftest import Note, Run, digests, said
from tests.faults.processes import work
from titanrun.recipe.rundir.run_files import read_json_or_empty


def test_row_20_sigterm_amid_a_step_saves_and_asks_for_another_start(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    assert work(resolved, seams.signals_amid_step, 5, signal.SIGTERM) == 75
    assert "stopped by SIGTERM after step 5 of 10, saved" in said(resolved)
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    note(
        20,
        injected="SIGTERM while step 5 computes",
        outcome="step 5 is finished and saved, exit 75; end bitwise equal",
        lost="nothing",
    )


@pytest.mark.parametrize(
    ("row", "number", "injected"),
    [
        (55, signal.SIGHUP, "SIGHUP, as from a closed terminal, while step 5 computes"),
        (56, signal.SIGXCPU, "SIGXCPU, as from the limit of CPU time, while step 5 computes"),
    ],
)
def test_rows_55_and_56_a_closed_terminal_and_the_end_of_cpu_time_save(
    run: Run, uncut: Path, note: Note, row: int, number: signal.Signals, injected: str
) -> None:
    resolved = run()
    assert work(resolved, seams.signals_amid_step, 5, number) == 75
    assert f"stopped by {number.name} after step 5 of 10, saved" in said(resolved)
    assert read_json_or_empty(resolved.parent / "status.json")["state"] == "preempted"
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    outcome = "step 5 is finished and saved, exit 75; end bitwise equal"
    note(row, injected=injected, outcome=outcome, lost="nothing")


def test_row_22_more_sigterms_during_the_save_change_nothing(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    assert work(resolved, seams.signals_amid_save, 3, signal.SIGTERM) == 75
    assert "stopped by SIGTERM after step 3 of 10, saved" in said(resolved)
    assert (resolved.parent / "checkpoint" / "step-3" / "manifest.json").exists()
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    note(
        22,
        injected="SIGTERM in step 3, and again at each write of its save",
        outcome="the save commits, exit 75",
        lost="nothing",
    )


def test_row_23_the_second_ctrl_c_stops_at_once(run: Run, uncut: Path, note: Note) -> None:
    resolved = run()
    assert work(resolved, seams.signals_amid_step, 5, signal.SIGINT, signal.SIGINT) == 130
    assert work(resolved) == 0
    assert "resuming after step 3" in said(resolved)
    assert digests(resolved) == digests(uncut)
    note(
        23,
        injected="SIGINT twice in step 5",
        outcome="exit 130 at once; resumes after step 3, end bitwise equal",
        lost="one interval",
    )
