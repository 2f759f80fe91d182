"""Checkpoints at addresses: whole or not at all, wherever the one who saves is stopped."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.components.checkpoints.fragile_store import FragileStore
from tests.components.checkpoints.test_store import bits, snapshot, some_tensors
from titanrun.components.checkpoints.addresses import Address, is_address, place
from titanrun.components.checkpoints.commits import UNFINISHED, commit_for
from titanrun.components.checkpoints.manifest import is_checkpoint, step_folders
from titanrun.components.checkpoints.retention import Retention
from titanrun.components.checkpoints.store import CheckpointStore
from titanrun.config.problems import ProblemsFound


@pytest.fixture
def folder() -> Iterator[Address]:
    FragileStore.revive()
    FragileStore.store.clear()
    yield Address("fragile://bucket/run")
    FragileStore.revive()


def test_a_store_saves_loads_and_keeps_as_a_folder_does(folder: Address) -> None:
    store, tensors = CheckpointStore(folder=folder, retention=Retention(2)), some_tensors()
    for step in (1, 2, 3):
        store.save(snapshot(step, tensors))
    assert store.steps() == [2, 3]
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    store.checkpoint(3).load_tensors(into)
    assert {name: bits(tensor) for name, tensor in into.items()} == {
        name: bits(tensor) for name, tensor in tensors.items()
    }
    assert store.checkpoint(3).load_state()["step"] == 3
    assert store.checkpoint(3).load_resolved() == "version: 1\n"
    assert store.checkpoint(3).load_rng().keys() == snapshot(3).rng.keys()
    assert store.damage(3, "always") == []
    names = {entry.name for entry in store.checkpoint(3).folder.iterdir()}
    assert names == {
        ".metadata",
        "__0_0.distcp",
        "manifest.json",
        "resolved.yaml",
        "rng-rank-0.safetensors",
        "state.json",
    }
    with pytest.raises(ProblemsFound, match="step-3 exists and is never written over"):
        store.save(snapshot(3))


def test_wherever_a_save_stops_the_older_checkpoint_stays_and_the_next_save_works(
    folder: Address,
) -> None:
    """Each operation in turn is the last that the store takes: between two objects, and in the middle of one."""
    store = CheckpointStore(folder=folder, retention=Retention(1))
    FragileStore.revive(1000)
    store.save(snapshot(1))
    store.save(snapshot(2))
    operations = FragileStore.done - 6  # those of a first save, which drops nothing
    assert operations > 10
    for left in range(operations):
        FragileStore.store.clear()
        FragileStore.revive()
        store.save(snapshot(1))
        FragileStore.revive(left)
        with suppress(OSError):
            store.save(snapshot(2))
        FragileStore.revive()
        whole = store.steps()
        assert whole in ([1], [1, 2], [2]), left
        assert [store.damage(step, "always") for step in whole] == [[]] * len(whole), left
        store.save(snapshot(3))
        assert store.steps() == [3] and not any(UNFINISHED in key for key in FragileStore.store), (
            left
        )


def test_wherever_deleting_or_moving_stops_nothing_half_is_taken_for_a_checkpoint(
    folder: Address,
) -> None:
    store = CheckpointStore(folder=folder)
    for work in ("remove", "move"):
        for left in range(20):
            store.save(snapshot(5))
            FragileStore.revive(left)
            moved = folder / "step-5.damaged-00000000"
            with suppress(OSError):
                store.remove(5) if work == "remove" else commit_for(folder).move(
                    folder / "step-5", moved
                )
            FragileStore.revive()
            if store.steps():
                assert store.damage(5, "always") == [], (work, left)
                store.remove(5)
            if is_checkpoint(moved):
                commit_for(folder).remove(moved)
            commit_for(folder).sweep(folder, re.compile(".*"))
            assert list(FragileStore.store) == [], (work, left)


def test_a_store_that_loses_bytes_gets_no_manifest(
    folder: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FragileStore.write
    monkeypatch.setattr(
        FragileStore,
        "write",
        lambda self, path, content: write(
            self, path, content[:-1] if "distcp" in path else content
        ),
    )
    store = CheckpointStore(folder=folder)
    with pytest.raises(ProblemsFound, match=r"__0_0.distcp has \d+ bytes, \d+ were sent"):
        store.save(snapshot(1))
    assert store.named_steps() == []


def test_damage_and_a_lost_manifest_are_found_and_not_swept(folder: Address) -> None:
    store = CheckpointStore(folder=folder)
    store.save(snapshot(1))
    store.save(snapshot(2))
    shard = folder / "step-2" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    assert store.damage(2, "always") == ["__0_0.distcp has other bytes than were saved"]
    assert store.damage(2, "off") == []
    (folder / "step-1" / "manifest.json").unlink()
    store.save(snapshot(3))
    assert store.named_steps() == [1, 2, 3] and store.steps() == [2, 3]
    moved = store.set_aside(2, "damaged")
    assert store.named_steps() == [1, 3] and is_checkpoint(moved)


def test_two_who_save_the_same_step_do_not_mix(folder: Address) -> None:
    first, second = CheckpointStore(folder=folder), CheckpointStore(folder=folder)
    written = first.commit.begin(folder / "step-1")
    second.save(snapshot(1))
    with pytest.raises(ProblemsFound, match="step-1 exists and is never written over"):
        first.commit.finish(written, folder / "step-1", "{}", {})
    assert second.damage(1, "always") == []


def test_addresses_and_paths_have_the_same_names() -> None:
    assert place("runs/first") == Path("runs/first")
    assert place("file:///tmp/first") == Path("/tmp/first")
    assert str(place("s3://bucket/run/")) == "s3://bucket/run"
    # what a Path made of it, as command lines may
    assert str(place("s3:/bucket/run")) == "s3://bucket/run"
    assert not is_address("C:") and not is_address("runs/a:b/c")
    step = place("s3://bucket/run") / "step-4"
    assert (step.name, str(step.parent), str(step.with_name("x"))) == (
        "step-4",
        "s3://bucket/run",
        "s3://bucket/run/x",
    )


def test_a_store_whose_package_is_missing_says_what_to_install() -> None:
    with pytest.raises(ProblemsFound) as found:
        step_folders(Address("az://bucket/run"))
    (problem,) = found.value.problems
    assert problem.code == "usage" and problem.help == 'pip install "titanrun[azure]"'
