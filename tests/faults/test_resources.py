"""Rows 33 to 37 and 47 to 51: the machine runs out of something, or somebody interferes."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.components.checkpoints.test_checkpoint_store import snapshot
from tests.faults import seams
from tests.faults.conftest import Note, Run, digests, said
from tests.faults.processes import work
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.hashed_file import HashedFile
from titanrun.components.metrics.spec.metrics_file import read_metrics


def test_row_33_a_full_disk_in_a_save_leaves_the_old_checkpoint(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    assert work(resolved, seams.files_end_at, 4, 20_000) == 7
    assert "error[disk]" in said(resolved)
    assert "free space, then start the same command again" in said(resolved)
    assert [entry.name for entry in (resolved.parent / "checkpoint").iterdir()] == ["step-3"]
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    outcome = "exit 7; step 3 intact, no partial files left; resumes, end bitwise equal"
    note(
        33,
        injected="no file may grow beyond 20 kB from step 4 on (RLIMIT_FSIZE)",
        outcome=outcome,
        lost="one interval",
    )


def test_row_34_a_full_disk_in_logs_and_metrics_costs_lines_only(run: Run, note: Note) -> None:
    resolved = run("run", "checkpoint.enable=false")
    assert work(resolved, seams.files_end_at, 3, 400, 7) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    lost = [line["metrics/lost_lines"] for line in lines if "metrics/lost_lines" in line]
    assert lost == [10 - len(lines)]
    assert lines[-1]["step"] == 10
    outcome = "training continues; the next line of metrics.jsonl counts the lost ones"
    note(
        34,
        injected="metrics.jsonl, logs and the console's file cannot grow in steps 3 to 6 "
        "(RLIMIT_FSIZE)",
        outcome=outcome,
        lost="metrics of those steps",
    )


@pytest.mark.parametrize(
    "number",
    [
        errno.EIO,
        pytest.param(errno.EROFS, marks=pytest.mark.slow),
        pytest.param(errno.EACCES, marks=pytest.mark.slow),
    ],
)
def test_row_35_no_call_that_fails_in_a_save_harms_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: Note, number: int
) -> None:
    kinds: dict[str, tuple[Any, str]] = {
        "open": (HashedFile, "__init__"),
        "write": (HashedFile, "_write_block"),
        "fsync": (os, "fsync"),
        "rename": (Path, "rename"),
    }
    tried = 0
    for kind, (owner, name) in kinds.items():
        for nth in range(1, 100):
            store = CheckpointStore(folder=tmp_path / f"{kind}-{nth}")
            store.save(snapshot(1))
            if not fails(store, monkeypatch, owner, name, nth, number):
                break
            tried += 1
            assert store.list_complete_steps() == [1]
            assert store.find_damage(1, "always") == []
            assert [entry.name for entry in store.folder.iterdir()] == ["step-1"]
            store.save(snapshot(2))
    assert tried > 15
    outcome = (
        "exit 7 with the reason; the old checkpoint verifies, nothing is left, the next save works"
    )
    note(
        35,
        injected=f"EIO, EROFS, EACCES at each of {tried} opens, writes, fsyncs and renames of a "
        f"save",
        outcome=outcome,
        lost="one interval",
    )


def fails(
    store: CheckpointStore,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    nth: int,
    number: int,
) -> bool:
    """Saves step 2 while the n-th call of one kind fails; false where there are fewer calls."""
    real, calls = getattr(owner, name), dict[str, int]()

    def failing(*arguments: Any, **options: Any) -> Any:
        seams.fails_at(calls, name, nth, number)
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing)
        try:
            store.save(snapshot(2))
        except OSError as error:
            assert error.errno == number
            # a commit whose last sync fails is there, and that is no harm
            if 2 in store.list_complete_steps():
                store.remove(2)
            return True
    return False


def test_row_36_memory_that_is_not_there_is_told_with_a_table(
    run: Run, uncut: Path, note: Note
) -> None:
    resolved = run()
    assert work(resolved, seams.memory_ends_at, 5) == 7
    words = said(resolved)
    assert "error[memory]: out of memory" in words
    assert (
        "lower training.local_batch_size or training.seq_len, or set activation_checkpoint: full"
        in words
    )
    assert re.search(r"= weights +\d+\.\d+ GiB", words)
    assert re.search(r"= available +\d+\.\d+ GiB", words)
    assert work(resolved) == 0
    assert digests(resolved) == digests(uncut)
    note(
        36,
        injected="RLIMIT_AS in step 5",
        outcome="exit 7 with need against limit, and advice; resumes",
        lost="one interval",
    )


def test_row_37_a_full_device_is_told_with_a_table(run: Run, note: Note) -> None:
    resolved = run()
    assert work(resolved, seams.device_is_full, 5) == 7
    assert "error[memory]: out of memory: tried to allocate 2.00 GiB" in said(resolved)
    assert "= optimizer state" in said(resolved)
    injected = "torch.OutOfMemoryError raised in step 5 (simulated: no accelerator here)"
    note(
        37,
        injected=injected,
        outcome="exit 7 with the memory table, and advice",
        lost="one interval",
    )


def test_row_30_a_run_that_hangs_while_it_is_built_ends(run: Run) -> None:
    resolved = run("run", "guard.build_timeout_seconds=1")
    assert work(resolved, seams.building_hangs) == 6
    assert "building the run takes longer than guard.build_timeout_seconds" in said(resolved)
    assert "seams.py" in (resolved.parent / "logs" / "stacks-rank-0.txt").read_text()


def test_row_48_a_clock_that_jumps_harms_nothing(run: Run, uncut: Path, note: Note) -> None:
    resolved = run("run", "guard.step_timeout_seconds=600", "guard.first_step_timeout_seconds=600")
    assert work(resolved, seams.clock_jumps, 3600.0) == 0
    assert digests(resolved) == digests(uncut)
    assert all(line["tps"] > 0 for line in read_metrics(resolved.parent / "metrics.jsonl"))
    note(
        48,
        injected="time.time jumps an hour forward and back at each call",
        outcome="no negative rate, no false timeout",
        lost="nothing",
    )


def test_row_49_a_second_run_in_a_directory_is_refused(run: Run, note: Note) -> None:
    import fcntl

    resolved = run()
    with (resolved.parent / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert work(resolved) == 2
    assert "is in use by" in said(resolved)
    assert work(resolved) == 0
    note(
        49,
        injected="a start while another process holds the lock",
        outcome="rejected with exit 2; the lock ends with its holder",
        lost="nothing",
    )


def test_row_50_a_save_still_running_at_the_end_is_waited_for(
    run: Run, uncut: Path, note: Note
) -> None:
    slow = run("slow", "checkpoint.async_mode=async")
    assert work(slow, seams.writes_are_slow, 0.0002) == 0
    assert digests(slow, 9) == digests(uncut, 9)
    failing = run("failing", "checkpoint.async_mode=async")
    assert work(failing, seams.files_end_at, 2, 20_000) == 7
    outcome = (
        "waits and commits, also at the end; an error of the writer ends the run with its exit code"
    )
    note(
        50,
        injected="a writer that sleeps at each write; one whose disk is full",
        outcome=outcome,
        lost="one interval",
    )


@pytest.mark.slow
def test_row_51_a_metric_back_end_that_raises_or_blocks_stops_nothing(
    run: Run, uncut: Path, note: Note
) -> None:
    for name, seam in (("raises", seams.tensorboard_raises), ("blocks", seams.tensorboard_blocks)):
        resolved = run(name, "metrics.trackers=[tensorboard]")
        assert work(resolved, seam) == 0
        assert digests(resolved) == digests(uncut)
        assert said(resolved).count("tracker tensorboard failed") == 1
    note(
        51,
        injected="TensorBoard raises; TensorBoard never returns",
        outcome="training unaffected, one warning",
        lost="its metrics",
    )
