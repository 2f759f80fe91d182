"""Rows 20 to 23: a run is asked to end."""

import signal
from pathlib import Path

from tests.faults import seams
from tests.faults.conftest import Note, Run, digests, said
from tests.faults.processes import work


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
        outcome="exit 130 at once; goes on after step 3, end bitwise equal",
        lost="one interval",
    )
