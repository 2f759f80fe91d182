"""Checkpoints at addresses: whole or not at all, wherever the one who saves is stopped."""

import re
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.components.checkpoints.fragile_store import FragileStore, StrangeError
from tests.components.checkpoints.test_checkpoint_store import bits, snapshot, some_tensors
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.commit import UNFINISHED_MARKER, get_commit_strategy
from titanrun.components.checkpoints.spec.hashed_file import HashedFile
from titanrun.components.checkpoints.spec.manifest import is_checkpoint, list_step_folders
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.components.checkpoints.spec.storage_path import (
    StoragePath,
    is_storage_path,
    local_copy,
    parse_storage_path,
)
from titanrun.config.problems import ProblemsFound


@pytest.fixture
def folder() -> Iterator[StoragePath]:
    FragileStore.revive()
    FragileStore.store.clear()
    yield StoragePath("fragile://bucket/run")
    FragileStore.revive()


def test_a_store_saves_loads_and_keeps_as_a_folder_does(folder: StoragePath) -> None:
    store, tensors = CheckpointStore(folder=folder, retention=RetentionPolicy(2)), some_tensors()
    for step in (1, 2, 3):
        store.save(snapshot(step, tensors))
    assert store.list_complete_steps() == [2, 3]
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    store.get_checkpoint(3).load_tensors(into)
    assert {name: bits(tensor) for name, tensor in into.items()} == {
        name: bits(tensor) for name, tensor in tensors.items()
    }
    assert store.get_checkpoint(3).load_state()["step"] == 3
    assert store.get_checkpoint(3).load_resolved_yaml() == "version: 1\n"
    assert store.get_checkpoint(3).load_rng_states().keys() == snapshot(3).rng.keys()
    assert store.find_damage(3, "always") == []
    names = {entry.name for entry in store.get_checkpoint(3).folder.iterdir()}
    assert names == {
        ".metadata",
        "__0_0.distcp",
        "manifest.json",
        "resolved.yaml",
        "rng-rank-0.safetensors",
        "state.json",
    }
    with pytest.raises(ProblemsFound, match="step-3 already exists and is never overwritten"):
        store.save(snapshot(3))


def test_wherever_a_save_stops_the_older_checkpoint_stays_and_the_next_save_works(
    folder: StoragePath,
) -> None:
    """Each operation in turn is the last that the store takes: between two objects, and in the
    middle of one."""
    store = CheckpointStore(folder=folder, retention=RetentionPolicy(1))
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
        whole = store.list_complete_steps()
        assert whole in ([1], [1, 2], [2]), left
        assert [store.find_damage(step, "always") for step in whole] == [[]] * len(whole), left
        store.save(snapshot(3))
        assert store.list_complete_steps() == [3] and not any(
            UNFINISHED_MARKER in key for key in FragileStore.store
        ), left


def test_wherever_deleting_or_moving_stops_nothing_half_is_taken_for_a_checkpoint(
    folder: StoragePath,
) -> None:
    store = CheckpointStore(folder=folder)
    for work in ("remove", "move"):
        for left in range(20):
            store.save(snapshot(5))
            FragileStore.revive(left)
            moved = folder / "step-5.damaged-00000000"
            with suppress(OSError):
                store.remove(5) if work == "remove" else get_commit_strategy(folder).move(
                    folder / "step-5", moved
                )
            FragileStore.revive()
            if store.list_complete_steps():
                assert store.find_damage(5, "always") == [], (work, left)
                store.remove(5)
            if is_checkpoint(moved):
                get_commit_strategy(folder).remove(moved)
            get_commit_strategy(folder).delete_leftovers(folder, re.compile(".*"))
            assert list(FragileStore.store) == [], (work, left)


def test_a_store_that_loses_bytes_gets_no_manifest(
    folder: StoragePath, monkeypatch: pytest.MonkeyPatch
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
    with pytest.raises(ProblemsFound, match=r"__0_0.distcp has [\d,]+ bytes, [\d,]+ were sent"):
        store.save(snapshot(1))
    assert store.list_all_steps() == []


def test_damage_and_a_lost_manifest_are_found_and_not_swept(folder: StoragePath) -> None:
    store = CheckpointStore(folder=folder)
    store.save(snapshot(1))
    store.save(snapshot(2))
    shard = folder / "step-2" / "__0_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(bytes(content))
    assert store.find_damage(2, "always") == ["__0_0.distcp has other bytes than were saved"]
    assert store.find_damage(2, "off") == []
    (folder / "step-1" / "manifest.json").unlink()
    store.save(snapshot(3))
    assert store.list_all_steps() == [1, 2, 3] and store.list_complete_steps() == [2, 3]
    moved = store.set_aside(2, "damaged")
    assert store.list_all_steps() == [1, 3] and is_checkpoint(moved)


def test_an_upload_that_fails_at_its_end_is_an_error_of_the_file(folder: StoragePath) -> None:
    file = HashedFile(folder / "shard")
    file.write(b"content")
    FragileStore.revive(0)
    with pytest.raises(OSError, match="connection reset by peer"):
        file.close()


def test_a_download_that_fails_on_its_way_is_an_error_of_the_file(
    folder: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise StrangeError("connection reset by peer")

    monkeypatch.setattr(FragileStore, "open", lambda *_, **__: CutOff())
    with pytest.raises(OSError, match="connection reset by peer"), local_copy(folder / "shard"):
        pass


def test_what_others_write_is_seen_though_a_store_remembers_what_it_saw(
    folder: StoragePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered: dict[str, Any] = {}
    look = FragileStore.info

    def look_once(self: FragileStore, path: str, **options: Any) -> Any:
        return remembered.setdefault(path, look(self, path, **options))

    monkeypatch.setattr(FragileStore, "info", look_once)
    monkeypatch.setattr(FragileStore, "invalidate_cache", lambda *_: remembered.clear())
    file = folder / "shard"
    for content in (b"one", b"seven"):
        file.write_bytes(content)
        assert file.get_size() == len(content)


def test_nothing_of_a_save_that_stopped_is_in_the_next_one(folder: StoragePath) -> None:
    final = folder / "step-1"
    for name in (UNFINISHED_MARKER, "__1_0.distcp"):
        (final / name).write_bytes(b"old")
    get_commit_strategy(folder).prepare(final)
    assert [entry.name for entry in final.iterdir()] == [UNFINISHED_MARKER]


def test_two_who_save_the_same_step_do_not_mix(folder: StoragePath) -> None:
    first, second = CheckpointStore(folder=folder), CheckpointStore(folder=folder)
    written = first.commit_strategy.prepare(folder / "step-1")
    second.save(snapshot(1))
    with pytest.raises(ProblemsFound, match="step-1 already exists and is never overwritten"):
        first.commit_strategy.commit(written, folder / "step-1", "{}", {})
    assert second.find_damage(1, "always") == []


def test_addresses_and_paths_have_the_same_names() -> None:
    assert parse_storage_path("runs/first") == Path("runs/first")
    assert parse_storage_path("file:///tmp/first") == Path("/tmp/first")
    assert str(parse_storage_path("s3://bucket/run/")) == "s3://bucket/run"
    # what a Path made of it, as command lines may
    assert str(parse_storage_path("s3:/bucket/run")) == "s3://bucket/run"
    assert not is_storage_path("C:") and not is_storage_path("runs/a:b/c")
    step = parse_storage_path("s3://bucket/run") / "step-4"
    assert (step.name, str(step.parent), str(step.with_name("x"))) == (
        "step-4",
        "s3://bucket/run",
        "s3://bucket/run/x",
    )


def test_a_store_whose_package_is_missing_says_what_to_install() -> None:
    with pytest.raises(ProblemsFound) as found:
        list_step_folders(StoragePath("az://bucket/run"))
    (problem,) = found.value.problems
    assert problem.code == "usage" and problem.hint == 'pip install "titanrun[azure]"'


@pytest.mark.parametrize("name", ["step-6", "step-6/notes.txt"])
def test_an_object_with_the_name_of_a_checkpoint_is_set_aside(tmp_path: Path, name: str) -> None:
    folder = parse_storage_path(f"local://{tmp_path}/run")
    assert isinstance(folder, StoragePath)
    (folder / name).write_bytes(b"notes")
    store = CheckpointStore(folder=folder)
    store.save(snapshot(6))
    assert store.find_damage(6, "always") == []
    (aside,) = [path for path in folder.iterdir() if path.name != "step-6"]
    assert aside.name.startswith("step-6.occupied-")
    kept = aside if aside.is_file() else aside / "notes.txt"
    assert kept.read_bytes() == b"notes"
