"""Rows 10 to 15: what lies on the disk is not what was saved."""

import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import seams
from tests.faults.conftest import Note, digests, said
from tests.faults.processes import work
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.manifest import read_manifest

SHARD = "__0_0.distcp"


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory, shared_tokens: Path) -> Path:
    """A run with checkpoints of steps 3, 6 and 9, killed in step 10."""
    from tests.faults.conftest import EVERY_3
    from tests.worker.conftest import write_run

    resolved = write_run(tmp_path_factory.mktemp("killed"), shared_tokens, "run", *EVERY_3)
    assert work(resolved, seams.dies_in, 10) < 0
    return resolved


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    """The same in a folder that may be harmed."""
    shutil.copytree(killed_once.parent, tmp_path / "run")
    return tmp_path / "run" / "resolved.yaml"


def saved(resolved: Path, step: int) -> Path:
    return resolved.parent / "checkpoint" / f"step-{step}"


def assert_survived(resolved: Path, uncut: Path, bad: str, after: int = 6) -> None:
    """The next start names the bad file, goes on after an earlier step, and ends as the run that
    nothing happened to."""
    assert work(resolved) == 0
    words = said(resolved)
    (line,) = [line for line in words.splitlines() if "step-9 cannot be used" in line]
    assert bad in line
    assert f"resuming after step {after}" in words
    assert digests(resolved) == digests(uncut)


def flip(folder: Path, draw: random.Random) -> str:
    """Flips one bit anywhere in a checkpoint, each byte as likely as another. Gives the file's
    name."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    path = draw.choices(files, weights=[file.stat().st_size for file in files])[0]
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path.name


def test_row_10_a_flipped_bit_is_named_and_survived(killed: Path, uncut: Path) -> None:
    assert_survived(killed, uncut, flip(saved(killed, 9), random.Random(10)))


@pytest.mark.endurance
def test_row_10_each_of_100_flipped_bits_is_named_and_survived(
    killed_once: Path, tmp_path: Path, uncut: Path, note: Note
) -> None:
    for seed in range(100):
        folder = tmp_path / f"run-{seed}"
        shutil.copytree(killed_once.parent, folder)
        assert_survived(
            folder / "resolved.yaml",
            uncut,
            flip(saved(folder / "resolved.yaml", 9), random.Random(seed)),
        )
        shutil.rmtree(folder)
    outcome = "each named with its file; resumes after step 6; each end bitwise equal"
    note(
        10,
        injected="one bit flipped in the newest checkpoint, 100 seeds",
        outcome=outcome,
        lost="two intervals at most",
    )


@pytest.mark.endurance
def test_row_10_no_edit_of_10_000_bytes_is_loaded_in_silence(killed_once: Path, note: Note) -> None:
    folder = saved(killed_once, 9)
    store, draw = CheckpointStore(folder=folder.parent), random.Random(10_000)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    silent = 0
    for _ in range(10_000):
        path = draw.choices(files, weights=[file.stat().st_size for file in files])[0]
        place = draw.randrange(path.stat().st_size)
        with path.open("r+b", buffering=0) as file:
            file.seek(place)
            old = file.read(1)
            file.seek(place)
            file.write(bytes([old[0] ^ draw.randrange(1, 256)]))
            silent += not store.find_damage(9, "always")
            file.seek(place)
            file.write(old)
    assert store.find_damage(9, "always") == []
    assert silent == 0
    outcome = "each detected: none of 10,000 would be loaded"
    note(
        "10b",
        injected="one byte changed anywhere in a checkpoint, 10,000 times",
        outcome=outcome,
        lost="two intervals at most",
    )


HARM: dict[str, Callable[[Path], None]] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one byte less": lambda path: os.truncate(path, path.stat().st_size - 1),
    "empty": lambda path: os.truncate(path, 0),
    "missing": Path.unlink,
}


@pytest.mark.parametrize("harm", HARM)
def test_row_11_a_shard_that_is_cut_or_missing_is_survived(
    killed: Path, uncut: Path, note: Note, harm: str
) -> None:
    HARM[harm](saved(killed, 9) / SHARD)
    assert_survived(killed, uncut, SHARD)
    outcome = "the file is named; resumes after step 6; end bitwise equal"
    note(11, injected=f"the newest shard: {', '.join(HARM)}", outcome=outcome, lost="two intervals")


def test_row_12_a_shard_of_another_step_is_survived(killed: Path, uncut: Path, note: Note) -> None:
    shutil.copy(saved(killed, 6) / SHARD, saved(killed, 9))
    assert_survived(killed, uncut, SHARD)
    outcome = "the file is named; resumes after step 6; end bitwise equal"
    note(
        12,
        injected="the shard of step 6 copied over that of step 9",
        outcome=outcome,
        lost="two intervals",
    )


@pytest.mark.parametrize("file", ["manifest.json", ".metadata"])
@pytest.mark.parametrize("harm", ["half", "missing"])
def test_row_13_a_manifest_or_index_that_is_cut_or_missing_is_survived(
    killed: Path, uncut: Path, note: Note, file: str, harm: str
) -> None:
    HARM[harm](saved(killed, 9) / file)
    assert_survived(killed, uncut, file)
    outcome = "no longer a checkpoint, the file is named; resumes after step 6; end bitwise equal"
    note(
        13,
        injected="manifest.json and .metadata: half, missing",
        outcome=outcome,
        lost="two intervals",
    )


def test_row_14_bad_checkpoints_only_are_an_end_and_no_beginning(killed: Path, note: Note) -> None:
    for step in (3, 6, 9):
        flip(saved(killed, step), random.Random(step))
    before = {
        path: path.read_bytes() for path in saved(killed, 3).parent.rglob("*") if path.is_file()
    }
    assert work(killed) == 4
    assert all(f"step-{step} cannot be used" in said(killed) for step in (3, 6, 9))
    assert {
        path: path.read_bytes() for path in saved(killed, 3).parent.rglob("*") if path.is_file()
    } == before
    note(
        14,
        injected="a bit flipped in each checkpoint",
        outcome="exit 4 with the reason for each; no byte changed",
        lost="nothing",
    )


class Hostile:
    """A pickle that runs something when it is read."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.victim,)


def test_row_15_a_hostile_pickle_leaves_no_trace(
    killed: Path, uncut: Path, tmp_path: Path, note: Note
) -> None:
    index = saved(killed, 9) / ".metadata"
    assert read_manifest(saved(killed, 9)).files[".metadata"].size == index.stat().st_size
    index.write_bytes(pickle.dumps(Hostile(tmp_path / "victim")).ljust(index.stat().st_size, b"\0"))
    assert_survived(killed, uncut, ".metadata")
    assert not (tmp_path / "victim").exists()
    injected = "a pickle that creates a file, in place of .metadata and with its size"
    note(
        15,
        injected=injected,
        outcome="rejected by its digest, never unpickled; resumes after step 6",
        lost="two intervals",
    )
