"""Rows 1 to 9 and 18: killed at any instant, a run goes on to the same bits."""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components.checkpoints.test_checkpoint_store import snapshot
from tests.faults import seams
from tests.faults.conftest import Note, Run, digests, said
from tests.faults.processes import work
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.manifest import (
    is_checkpoint,
    read_manifest,
)
from titanrun.components.checkpoints.spec.verification import find_damaged_files

SHARD = "__0_0.distcp"
KILLED = -signal.SIGKILL


def steps(resolved: Path) -> list[str]:
    """What lies in the folder of checkpoints."""
    return sorted(entry.name for entry in (resolved.parent / "checkpoint").iterdir())


def goes_on(resolved: Path, uncut: Path, after: int) -> None:
    """The next start goes on after that step and ends as the run that nothing happened to, with
    nothing left over."""
    assert work(resolved) == 0
    assert f"resuming after step {after}" in said(resolved)
    assert digests(resolved) == digests(uncut)
    assert steps(resolved) == steps(uncut)


@pytest.mark.parametrize(
    ("row", "seam", "arguments", "injected"),
    [
        (
            1,
            seams.kill_before_opening,
            (SHARD, 6),
            "SIGKILL before the first byte of the shard of step 6",
        ),
        (
            2,
            seams.kill_amid_writing,
            (SHARD, 6),
            "SIGKILL when half of the shard of step 6 is written",
        ),
        (
            3,
            seams.kill_before_opening,
            ("manifest.json", 6),
            "SIGKILL after the shards of step 6, before its manifest",
        ),
        (
            4,
            seams.kill_around_rename,
            (6, False),
            "SIGKILL after the manifest of step 6, before the rename",
        ),
    ],
)
def test_row_1_to_4_a_kill_in_a_save_costs_one_interval(
    run: Run,
    uncut: Path,
    note: Note,
    row: int,
    seam: seams.Seam,
    arguments: tuple[object, ...],
    injected: str,
) -> None:
    resolved = run()
    assert work(resolved, seam, *arguments) == KILLED
    assert not is_checkpoint(resolved.parent / "checkpoint" / "step-6")
    goes_on(resolved, uncut, after=3)
    note(
        row,
        injected=injected,
        outcome="resumes after step 3; partial files removed; end bitwise equal",
        lost="3 steps, one interval",
    )


def test_row_5_a_kill_right_after_the_rename_costs_nothing(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    assert work(resolved, seams.kill_around_rename, 6, True) == KILLED
    goes_on(resolved, uncut, after=6)
    note(
        5,
        injected="SIGKILL right after the rename of step 6",
        outcome="step 6 is found by scanning; end bitwise equal",
        lost="nothing",
    )


@dataclass(slots=True)
class Kills:
    """Results of runs that were killed repeatedly: kills, kills during a save, runs that ended, and
    the times drawn from."""

    span_seconds: float
    kills: int = 0
    amid_saves: int = 0
    end_time: int = 0


def random_kills(run: Run, uncut: Path, count: int, seed: int) -> Kills:
    """Kills a run at random times until it has died so often; a finished one begins anew."""
    draw, found = random.Random(seed), Kills(seconds_of(run("measured")))
    resolved, left_before = run(f"run-{found.end_time}"), set[Path]()
    while found.kills < count:
        code = work(resolved, seams.kill_after, draw.uniform(0.0, found.span_seconds))
        assert code in (0, KILLED)
        found.kills += code == KILLED
        left = set((resolved.parent / "checkpoint").glob("step-*.tmp-*"))
        found.amid_saves += bool(left - left_before)
        left_before = left
        if code == 0:
            assert digests(resolved) == digests(uncut)
            found.end_time += 1
            shutil.rmtree(resolved.parent)
            resolved = run(f"run-{found.end_time}")
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    found.end_time += 1
    return found


def seconds_of(resolved: Path) -> float:
    """How long a whole run takes here and now, so that kills reach every part of it."""
    began = time.monotonic()
    assert work(resolved) == 0
    return time.monotonic() - began


def test_row_6_a_few_kills_at_random_times(run: Run, uncut: Path) -> None:
    assert random_kills(run, uncut, 12, seed=6).kills == 12


@pytest.mark.endurance
def test_row_6_200_kills_at_random_times(run: Run, uncut: Path, note: Note) -> None:
    found = random_kills(run, uncut, 200, seed=200)
    assert found.kills == 200
    when = f"at random times up to {found.span_seconds:.1f} s after the start, seed 200"
    note(
        6,
        injected=f"200 SIGKILLs {when}; {found.amid_saves} of them during a save",
        outcome=f"always resumes; {found.end_time} runs ended, each bitwise equal to an "
        "uninterrupted one",
        lost="at most one interval each",
    )


def test_row_7_a_kill_while_a_step_is_saved_again_leaves_the_old_one(run: Run, note: Note) -> None:
    resolved = run()
    assert work(resolved, seams.kill_around_rename, 9, True) == KILLED
    again = run("run", "checkpoint.load_step=3")
    assert work(again, seams.kill_amid_writing, SHARD, 6) == KILLED
    (old,) = (resolved.parent / "checkpoint").glob("step-6.superseded-*")
    assert find_damaged_files(old, read_manifest(old), "always") == []
    outcome = "the old step 6 is kept under another name and verifies; nothing is ever overwritten"
    note(
        7,
        injected="rollback to step 3, SIGKILL during the second save of step 6",
        outcome=outcome,
        lost="nothing",
    )


def test_row_8_a_kill_while_old_checkpoints_go_leaves_no_half_one(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run("run", "checkpoint.keep_latest_k=1")
    assert work(resolved, seams.kill_amid_purge) == KILLED
    assert [name for name in steps(resolved) if not name.startswith("step-3.tmp-")] == ["step-6"]
    assert work(resolved) == 0
    assert "resuming after step 6" in said(resolved)
    assert digests(resolved) == digests(uncut)
    assert steps(resolved) == ["step-10"]
    note(
        8,
        injected="SIGKILL when one file of step 3 is deleted",
        outcome="it had been renamed before; removed; step 6 is used",
        lost="nothing",
    )


def test_row_9_everything_is_on_disk_before_a_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: Note
) -> None:
    synced: dict[tuple[int, int], int] = {}
    real_fsync, real_rename = os.fsync, Path.rename
    lost: list[str] = []

    def fsync(descriptor: int) -> None:
        real_fsync(descriptor)
        status = os.fstat(descriptor)
        synced[status.st_dev, status.st_ino] = status.st_size

    def rename(self: Path, target: Path) -> Path:
        if target.name != "step-1":
            return real_rename(self, target)
        states = {path.name: path.stat() for path in (*self.rglob("*"), self)}
        lost.extend(
            name
            for name, state in states.items()
            if synced.get((state.st_dev, state.st_ino)) != state.st_size
        )
        synced.clear()
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    CheckpointStore(folder=tmp_path / "checkpoint").save(snapshot(1))
    parent = (tmp_path / "checkpoint").stat()
    assert lost == []
    assert (parent.st_dev, parent.st_ino) in synced
    outcome = (
        "at the rename each file and the folder are synced at their full size, afterwards the "
        "folder around it"
    )
    note(
        9,
        injected="the syncs of a save recorded, and compared with the files at the rename",
        outcome=outcome,
        lost="one interval",
    )


def test_row_18_a_stop_after_each_of_the_steps_changes_no_bit(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    for step in range(1, 10):
        assert work(resolved, seams.signals_amid_step, step, signal.SIGTERM) == 75
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    shutil.rmtree(resolved.parent)
    injected = "SIGTERM in each of the steps of one run, which accumulates and shuffles"
    note(
        18,
        injected=injected,
        outcome="weights, optimizer, random numbers and data position bitwise equal",
        lost="nothing",
    )
