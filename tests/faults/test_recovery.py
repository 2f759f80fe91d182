"""Rows 61 to 65: what lies on the disk is good in itself, and not what this run wrote."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.components.checkpoints.spec.test_verification import forge, forge_state
from tests.faults import seams
from tests.faults.conftest import Note, Run, digests, said
from tests.faults.processes import work
from tests.faults.test_damage import (
    assert_survived,
    killed,  # noqa: F401 (a fixture)
    killed_once,  # noqa: F401 (a fixture)
    saved,
)
from tests.faults.test_data import text_run, write_jsonl  # noqa: F401 (a fixture)
from titanrun.components.checkpoints.spec.manifest import read_manifest


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_id(resolved: Path, run_id: str) -> None:
    """Give a run the id that `titanrun train` would have given it."""
    record = {"format": 1, "id": run_id, "name": "tiny-run", "parent": None, "starts": []}
    (resolved.parent / "run.json").write_text(json.dumps(record))


def test_row_61_a_checkpoint_of_another_run_is_not_resumed(
    run: Run, uncut: Path, note: Note
) -> None:
    own, other = run("own"), run("other", "debug.seed=7")
    for resolved, run_id in ((own, "a" * 32), (other, "b" * 32)):
        write_id(resolved, run_id)
        assert work(resolved, seams.dies_in, 10) < 0
    shutil.rmtree(saved(own, 9))
    shutil.copytree(saved(other, 9), saved(own, 9))
    before = content(own.parent / "checkpoint")
    assert work(own) == 4
    assert "step-9 belongs to another run" in said(own)
    assert content(own.parent / "checkpoint") == before
    shutil.rmtree(saved(own, 9))
    assert work(own) == 0
    assert digests(own) == digests(uncut)
    note(
        61,
        injected="a whole checkpoint of another run in place of the newest",
        outcome="exit 4, both runs are named, no byte changed; once it is gone, resumes after "
        "step 6, end bitwise equal",
        lost="one interval",
    )


FORGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no files": (lambda folder: forge(folder, files={}), "does not list resolved.yaml"),
    "no shard": (
        lambda folder: forge(folder, files=without_shards(folder)),
        "does not list __0_0.distcp",
    ),
    "no data position": (
        lambda folder: forge_state(folder, lambda state: state.pop("data")),
        "state.json has no data",
    ),
}


def without_shards(folder: Path) -> object:
    files = read_manifest(folder).files
    return {name: entry for name, entry in files.items() if not name.endswith(".distcp")}


@pytest.mark.parametrize("forgery", FORGE)
def test_row_62_a_manifest_with_a_right_digest_and_wrong_words_is_survived(
    killed: Path,  # noqa: F811
    uncut: Path,
    note: Note,
    forgery: str,
) -> None:
    change, expected = FORGE[forgery]
    change(saved(killed, 9))
    assert_survived(killed, uncut, expected)
    note(
        62,
        injected=f"the newest manifest with a right digest: {', '.join(FORGE)}",
        outcome="named; resumes after step 6; end bitwise equal",
        lost="two intervals",
    )


def test_row_63_a_checkpoint_of_a_newer_version_ends_the_run_untouched(
    killed: Path,  # noqa: F811
    note: Note,
) -> None:
    forge(saved(killed, 9), format=99)
    before = content(killed.parent / "checkpoint")
    assert work(killed) == 4
    assert "was written by a newer titanrun" in said(killed)
    assert content(killed.parent / "checkpoint") == before
    note(
        63,
        injected="the newest manifest of a future format",
        outcome="exit 4 with the version to use; no byte changed",
        lost="nothing",
    )


def change_in_place(folder: Path) -> Path:
    """Change one token of the cache; size and time of the file stay."""
    (file,) = (folder / "data").glob("*.npy")
    status = file.stat()
    tokens = np.load(file, mmap_mode="r+")
    tokens[len(tokens) // 2] += 1
    tokens.flush()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return file


def test_row_64_a_cache_that_changed_is_built_again(
    tmp_path: Path,
    text_run: Callable[..., Path],  # noqa: F811
    note: Note,
) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", *(f"story {n} " * 40 for n in range(30)))
    plain, stopped = text_run(text, folder="plain"), text_run(text, folder="stopped")
    assert work(plain) == 0
    assert work(stopped, seams.signals_amid_step, 4, signal.SIGTERM) == 75
    fresh = text_run(text, folder="fresh")
    shutil.copytree(plain.parent / "data", fresh.parent / "data")
    for resolved in (fresh, stopped):
        file = change_in_place(resolved.parent)
        assert work(resolved) == 3
        assert f"'{file}' holds other tokens than were written" in said(resolved)
        assert work(resolved) == 0
        assert digests(resolved) == digests(plain)
    assert "resuming after step 4" in said(stopped)
    note(
        64,
        injected="one token of the cache changed, with size and time as before: between two runs; "
        "between stop and resume",
        outcome="exit 3 before it is trained on, the file is named; the same command tokenizes "
        "again, end bitwise equal",
        lost="the steps since the checkpoint",
    )


OCCUPY: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("notes"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "gone"),
}


@pytest.mark.parametrize("what", OCCUPY)
def test_row_65_a_name_that_is_taken_costs_no_save(
    run: Run, uncut: Path, note: Note, what: str
) -> None:
    resolved = run()
    saved(resolved, 6).parent.mkdir()
    OCCUPY[what](saved(resolved, 6))
    assert work(resolved, seams.dies_in, 8) < 0
    assert "step-6 is not a checkpoint: renamed to" in said(resolved)
    assert work(resolved) == 0
    assert "resuming after step 6" in said(resolved)
    assert digests(resolved) == digests(uncut)
    assert len(list(saved(resolved, 6).parent.glob("step-6.occupied-*"))) == 1
    note(
        65,
        injected=f"{' or '.join(OCCUPY)} named step-6 before that step is saved",
        outcome="renamed once and named in the log; the step is saved; end bitwise equal",
        lost="nothing",
    )
