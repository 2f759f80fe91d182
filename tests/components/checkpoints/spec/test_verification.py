"""A manifest whose digest is right may still say too little, or contradict its folder."""

import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.components.checkpoints.test_checkpoint_store import save, snapshot, some_tensors
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.hashed_file import FileEntry
from titanrun.components.checkpoints.spec.manifest import (
    OtherFormatError,
    format_manifest,
    read_manifest,
)
from titanrun.components.checkpoints.spec.verification import find_damaged_files
from titanrun.config.problems import ProblemsFound


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """The store of one good checkpoint, of step 1."""
    made = CheckpointStore(folder=tmp_path)
    save(made, 1)
    assert made.find_damage(1, "always") == []
    return made


def forge(folder: Path, **changes: Any) -> None:
    """Write a manifest with other values and a digest that fits."""
    forged = replace(read_manifest(folder), **changes)
    (folder / "manifest.json").write_text(format_manifest(forged))


def forge_file(folder: Path, name: str, content: bytes) -> None:
    """Write other bytes into a file and its entry in the manifest."""
    (folder / name).write_bytes(content)
    entry = FileEntry(len(content), xxhash.xxh3_128(content).hexdigest())
    forge(folder, files={**read_manifest(folder).files, name: entry})


def forge_state(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    state = json.loads((folder / "state.json").read_text())
    change(state)
    forge_file(folder, "state.json", json.dumps(state).encode())


def without(files: Mapping[str, FileEntry], name: str) -> dict[str, FileEntry]:
    return {key: entry for key, entry in files.items() if key != name}


@pytest.mark.parametrize("text", ["[]", "null", "7", '"x"', "{", "{}", "[" * 10**5, "NaN", "\0"])
def test_a_manifest_that_is_none_is_named(store: CheckpointStore, text: str) -> None:
    """Row B13 of the defect list: files of another shape ended the run with a traceback."""
    path = store.get_checkpoint(1).folder / "manifest.json"
    assert isinstance(path, Path)
    path.write_text(text)
    with pytest.raises(ProblemsFound, match=r"manifest\.json is damaged") as found:
        read_manifest(path.parent)
    assert found.value.problems[0].code == "checkpoint"


@pytest.mark.parametrize("policy", ["always", "sampled", "off"])
def test_an_empty_list_of_files_does_not_switch_verification_off(
    store: CheckpointStore, policy: Any
) -> None:
    """Row B14 of the defect list."""
    forge(store.folder / "step-1", files={})
    assert store.find_damage(1, policy) == ["its manifest does not list resolved.yaml"]


@pytest.mark.parametrize(
    "name",
    ["__0_0.distcp", ".metadata", "state.json", "resolved.yaml", "rng-rank-0.safetensors"],
)
def test_a_file_that_the_manifest_leaves_out_is_named(store: CheckpointStore, name: str) -> None:
    folder = store.folder / "step-1"
    forge(folder, files=without(read_manifest(folder).files, name))
    (reason,) = store.find_damage(1, "always")
    assert f"does not list {name}" in reason


def test_the_steps_of_manifest_and_state_must_agree(store: CheckpointStore) -> None:
    folder = store.folder / "step-1"
    forge_state(folder, lambda state: state["train"].update(step=7))
    assert store.find_damage(1, "always") == ["state.json has train.step 7, its manifest step 1"]
    forge_state(folder, lambda state: state.update(step=7))
    assert store.find_damage(1, "always") == ["state.json has step 7, its manifest step 1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda state: state.pop("data"), "state.json has no data"),
        (lambda state: state.update(data=[1]), "state.json has no data"),
        (lambda state: state.pop("train"), "state.json has no train.step"),
        (lambda state: state.pop("engine"), "state.json has no engine.steps_done"),
        (lambda state: state.pop("step"), "state.json is damaged: it has no step"),
    ],
)
def test_a_state_that_no_run_can_resume_from_is_damage(
    store: CheckpointStore, change: Callable[[dict[str, Any]], object], expected: str
) -> None:
    """Row B13 of the defect list."""
    forge_state(store.folder / "step-1", change)
    (reason,) = store.find_damage(1, "always")
    assert reason.endswith(expected)


@pytest.mark.parametrize("layout", [{}, {"ranks": 0}, {"ranks": "2"}, {"ranks": True}])
def test_a_layout_without_a_number_of_ranks_is_damage(store: CheckpointStore, layout: Any) -> None:
    forge(store.folder / "step-1", layout=layout)
    assert store.find_damage(1, "always") == ["its manifest does not say how many ranks saved it"]


def test_an_index_of_other_tensors_than_the_manifest_is_damage(store: CheckpointStore) -> None:
    forge(store.folder / "step-1", tensors={"another": "float32[1]"})
    assert store.find_damage(1, "always") == ["its manifest and .metadata name different tensors"]


def test_reading_the_index_calls_nothing_that_it_names(
    store: CheckpointStore, tmp_path: Path
) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "victim"),)

    forge_file(store.folder / "step-1", ".metadata", pickle.dumps(Hostile()))
    (reason,) = store.find_damage(1, "always")
    assert reason.startswith(".metadata is not an index of tensors")
    assert not (tmp_path / "victim").exists()


def test_the_state_of_an_engine_without_data_position_is_whole(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    engine = {"steps_done": 1, "policy_version": 3}
    store.save(snapshot(1, some_tensors(), state={"train": {"step": 1}, "engine": engine}))
    assert store.find_damage(1, "always") == []


@pytest.mark.parametrize(("written", "age"), [(3, "a newer"), (1, "an older")])
def test_another_format_is_not_damage(store: CheckpointStore, written: int, age: str) -> None:
    """Row B8 of the defect list."""
    folder = store.folder / "step-1"
    forge(folder, format=written, versions={"titanrun": "9.1"})
    for verify in (
        lambda: store.find_damage(1, "always"),
        lambda: find_damaged_files(folder, read_manifest(folder), "always"),
    ):
        with pytest.raises(ProblemsFound) as error:
            verify()
        assert isinstance(error.value, OtherFormatError) and error.value.exit_code == 4
        (problem,) = error.value.problems
        assert f"was written by {age} titanrun: it has format {written}" in problem.message
        assert problem.hint == "use titanrun 9.1"


def test_a_format_number_that_is_damaged_is_damage(store: CheckpointStore) -> None:
    path = store.folder / "step-1" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 3'))
    (reason,) = store.find_damage(1, "always")
    assert "manifest.json is damaged" in reason


@pytest.mark.parametrize(("policy", "num_found"), [("always", 3), ("sampled", 2), ("off", 0)])
def test_a_policy_reads_all_large_files_or_one_of_them_or_none(
    store: CheckpointStore, policy: Any, num_found: int
) -> None:
    folder = store.folder / "step-1"
    sizes = {"extra-small.bin": 9, "extra-1.bin": 1024**2 + 1, "extra-2.bin": 1024**2 + 1}
    for name, size in sizes.items():
        forge_file(folder, name, bytes(size))
        (folder / name).write_bytes(b"x".ljust(size, b"\0"))
    found = find_damaged_files(folder, read_manifest(folder), policy)
    assert len([text for text in found if "extra-" in text]) == num_found


def test_one_of_several_ranks_looks_at_what_the_manifest_says(store: CheckpointStore) -> None:
    folder = store.folder / "step-1"
    forge(folder, layout={})
    manifest = read_manifest(folder)
    found = [
        find_damaged_files(folder, manifest, "always", shard_index=rank, num_shards=2)
        for rank in range(2)
    ]
    assert found == [["its manifest does not say how many ranks saved it"], []]
