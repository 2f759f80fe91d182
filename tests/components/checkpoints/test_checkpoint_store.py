import io
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import safetensors.torch
import torch
import xxhash
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp_metadata

from titanrun.components.checkpoints.checkpoint_reader import LoadTolerance, Snapshot
from titanrun.components.checkpoints.checkpoint_store import (
    CheckpointStore,
    no_usable_checkpoint_error,
)
from titanrun.components.checkpoints.dcp_io import IndexUnpickler
from titanrun.components.checkpoints.spec.atomic_folder import atomic_folder
from titanrun.components.checkpoints.spec.manifest import MANIFEST_FILE, read_manifest
from titanrun.components.checkpoints.spec.retention import RetentionPolicy
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.determinism import get_rng_states, set_rng_states
from titanrun.distributed.object_collectives import RankGroup

T = TypeVar("T")
CPU = torch.device("cpu")


def some_tensors() -> dict[str, Tensor]:
    return {
        "layers.0.weight": torch.randn(5, 3),
        "layers.0.half": torch.randn(4, 6).bfloat16()[:, ::2],
        "empty": torch.zeros(0, 3),
        "optimizer.layers.0.weight.step": torch.tensor(7.0),
        "special": torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45]),
        "counts": torch.tensor([2**62, -1]),
    }


def snapshot(step: int, tensors: dict[str, Tensor] | None = None, **others: Any) -> Snapshot:
    tensors = some_tensors() if tensors is None else tensors
    given = {
        "state": {
            "train": {"step": step, "tokens_seen": 64},
            "engine": {"steps_done": step},
            "data": {"row": 8},
        },
        "rng": get_rng_states(CPU),
        "resolved_yaml": "version: 1\n",
        "layout": {"ranks": 1},
        **others,
    }
    return Snapshot(step=step, tensors=tensors, **given)


def save(store: CheckpointStore, step: int, tensors: dict[str, Tensor] | None = None) -> None:
    store.save(snapshot(step, tensors))


def load_tensors(store: CheckpointStore, step: int, into: Mapping[str, Tensor]) -> None:
    store.get_checkpoint(step).load_tensors(into)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def problem_of(error: pytest.ExceptionInfo[ProblemsFound]) -> str:
    (problem,) = error.value.problems
    assert problem.code == "checkpoint"
    return problem.message


def test_what_was_saved_is_loaded_bit_by_bit_and_in_place(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path / "checkpoint")
    saved = some_tensors()
    save(store, 3, saved)
    loaded = {name: torch.ones_like(tensor) for name, tensor in saved.items()}
    addresses = {name: tensor.data_ptr() for name, tensor in loaded.items()}
    load_tensors(store, 3, loaded)
    assert {name: bits(tensor) for name, tensor in loaded.items()} == {
        name: bits(tensor) for name, tensor in saved.items()
    }
    assert {name: tensor.data_ptr() for name, tensor in loaded.items()} == addresses


def test_a_parameter_is_filled_in_place(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    save(store, 1, source.state_dict())
    load_tensors(store, 1, dict(target.named_parameters()))
    assert torch.equal(source.weight, target.weight)
    assert target.weight.requires_grad


def test_state_and_recipe_come_back_as_they_were(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    state = {"lr": 0.1 + 0.2, "data": {"epoch": 1, "pcg64": 2**127 + 1}, "name": "ä"}
    store.save(snapshot(12, {}, state=state, rng={}, resolved_yaml="name: ä\n"))
    assert store.get_checkpoint(12).load_state() == {**state, "step": 12}
    assert store.get_checkpoint(12).load_resolved_yaml() == "name: ä\n"
    assert "0.30000000000000004" in (tmp_path / "step-12" / "state.json").read_text()


def test_a_state_with_nan_is_not_saved(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.save(snapshot(1, {}, state={"loss": float("nan")}))
    assert list(tmp_path.iterdir()) == []


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    np.random.standard_normal()
    torch.randn(1)
    save(store, 1)
    expected = (np.random.standard_normal(3).tolist(), torch.randn(3).tolist())
    set_rng_states(store.get_checkpoint(1).load_rng_states(), CPU)
    assert (np.random.standard_normal(3).tolist(), torch.randn(3).tolist()) == expected


def test_an_empty_or_absent_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert CheckpointStore(folder=tmp_path / "absent").find_latest_step() is None
    assert CheckpointStore(folder=tmp_path).find_latest_step() is None


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    for step in (9, 10):
        save(store, step)
    for name in ("step-11", "step-12.tmp-0123abcd", "step-013", "step-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-13").write_text("a file")
    shutil.copy(tmp_path / "step-10" / "manifest.json", tmp_path / "step-12.tmp-0123abcd")
    assert store.list_complete_steps() == [9, 10]
    assert store.find_latest_step() == 10


def test_nothing_is_saved_over_an_existing_step(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 5)
    before = {file.name: file.read_bytes() for file in (tmp_path / "step-5").iterdir()}
    with pytest.raises(ProblemsFound) as error:
        save(store, 5)
    assert problem_of(error) == f"{tmp_path / 'step-5'} already exists and is never overwritten"
    assert {file.name: file.read_bytes() for file in (tmp_path / "step-5").iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-5"]


def test_a_save_sweeps_what_a_crash_left_and_nothing_else(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    folder = tmp_path / "checkpoint"
    (folder / "step-1.tmp-0123abcd" / "inner").mkdir(parents=True)
    (folder / "step-2.tmp-mine").mkdir()
    (folder / "notes.tmp-0123abcd").mkdir()
    (folder / "step-3.tmp-0123abcd").symlink_to(elsewhere)
    save(CheckpointStore(folder=folder), 1)
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "notes.tmp-0123abcd",
        "step-1",
        "step-2.tmp-mine",
        "step-3.tmp-0123abcd",
    ]
    assert (elsewhere / "kept").exists()


def test_a_folder_that_someone_makes_during_a_save_is_not_replaced(tmp_path: Path) -> None:
    final = tmp_path / "step-1"
    with (
        pytest.raises(ProblemsFound, match="already exists and is never overwritten"),
        atomic_folder(final),
    ):
        final.mkdir()
    assert list(tmp_path.iterdir()) == [final]


def test_the_first_save_makes_the_folder_and_those_above(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path / "run" / "checkpoint")
    save(store, 1)
    assert store.list_complete_steps() == [1]


def test_what_a_crash_left_takes_no_space_while_a_save_writes(tmp_path: Path) -> None:
    found: list[str] = []

    class LookingRanks(RankGroup):
        def all_gather_results(self, work: Callable[[], T]) -> list[T]:
            found.extend(entry.name for entry in tmp_path.iterdir())
            return super().all_gather_results(work)

    (tmp_path / "step-1.tmp-0123abcd").mkdir()
    save(CheckpointStore(folder=tmp_path, ranks=LookingRanks()), 2)
    (written,) = found
    assert written.startswith("step-2.tmp-")


def test_a_save_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    with pytest.raises(AttributeError):
        store.save(snapshot(1, rng={"not a tensor": 3}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("keep", "kept"), [(0, [2, 9, 10, 11]), (1, [11]), (3, [9, 10, 11])])
def test_the_latest_k_stay(tmp_path: Path, keep: int, kept: list[int]) -> None:
    store = CheckpointStore(folder=tmp_path, retention=RetentionPolicy(keep))
    for step in (2, 9, 10, 11):
        save(store, step, {})
    assert store.list_complete_steps() == kept
    assert len(list(tmp_path.iterdir())) == len(kept)


def test_every_difference_is_named_before_a_byte_is_read(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(
        store,
        1,
        {
            "same": torch.ones(2),
            "old": torch.ones(1),
            "shape": torch.ones(2, 3),
            "type": torch.ones(2),
        },
    )
    into = {
        "same": torch.zeros(2),
        "new": torch.zeros(1),
        "shape": torch.zeros(3, 2),
        "type": torch.zeros(2, dtype=torch.bfloat16),
    }
    with pytest.raises(ProblemsFound) as error:
        load_tensors(store, 1, into)
    assert problem_of(error) == (
        f"{tmp_path / 'step-1'} does not fit this run: missing: new; unexpected: old; "
        "different shape: shape (float32[2, 3], wanted float32[3, 2]); different dtype: type "
        "(float32[2], wanted bfloat16[2])"
    )
    assert not into["same"].any()


def test_many_differences_are_counted(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {})
    with pytest.raises(ProblemsFound) as error:
        load_tensors(store, 1, {f"w{i}": torch.zeros(1) for i in range(9)})
    assert problem_of(error).endswith("missing: w0, w1, w2, w3 and 5 more")


def test_weights_can_be_loaded_without_the_optimizer(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {"w": torch.ones(2), "optimizer.w.step": torch.ones(())})
    into = {"w": torch.zeros(2)}
    store.get_checkpoint(1).load_tensors(into, tolerance=LoadTolerance(ignore_prefix="optimizer."))
    assert into["w"].tolist() == [1, 1]


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    with pytest.raises(ProblemsFound) as error:
        store.get_checkpoint(1).load_state()
    assert problem_of(error) == f"{tmp_path / 'step-1'} is not a checkpoint: folder not found"
    (tmp_path / "step-1").mkdir()
    with pytest.raises(ProblemsFound) as error:
        load_tensors(store, 1, {})
    assert (
        problem_of(error) == f"{tmp_path / 'step-1'} is not a checkpoint: it has no manifest.json"
    )


@pytest.mark.parametrize(
    "file", [".metadata", "__0_0.distcp", "manifest.json", "rng-rank-0.safetensors", "state.json"]
)
@pytest.mark.parametrize("damage", ["gone", "empty", "half"])
def test_a_damaged_file_is_one_problem_that_names_it(
    tmp_path: Path, file: str, damage: str
) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {"w": torch.ones(1000)})
    path = tmp_path / "step-1" / file
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.unlink()
    if damage != "gone":
        path.write_bytes(half if damage == "half" else b"")
    with pytest.raises(ProblemsFound) as error:
        store.get_checkpoint(1).load_state()
        store.get_checkpoint(1).load_rng_states()
        load_tensors(store, 1, {"w": torch.zeros(1000)})
    assert str(tmp_path / "step-1") in problem_of(error)
    assert file == "__0_0.distcp" or file in problem_of(error)


class Hostile:
    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.victim,)


def test_a_pickle_in_the_index_runs_nothing(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {})
    (tmp_path / "step-1" / ".metadata").write_bytes(pickle.dumps(Hostile(tmp_path / "victim")))
    with pytest.raises(ProblemsFound) as error:
        load_tensors(store, 1, {})
    assert "which an index does not need" in problem_of(error)
    assert not (tmp_path / "victim").exists()


def test_torch_itself_reads_the_tensors(tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    saved = {"w": torch.randn(3)}
    save(CheckpointStore(folder=tmp_path), 1, saved)
    into = {"w": torch.zeros(3)}
    with pytest.warns(UserWarning, match="single process"):
        checkpoint.load(into, checkpoint_id=tmp_path / "step-1")
    assert torch.equal(into["w"], saved["w"])


def test_files_are_json_safetensors_and_the_recipe_beside_the_tensors(tmp_path: Path) -> None:
    save(CheckpointStore(folder=tmp_path), 1)
    folder = tmp_path / "step-1"
    files = [
        ".metadata",
        "__0_0.distcp",
        "manifest.json",
        "resolved.yaml",
        "rng-rank-0.safetensors",
        "state.json",
    ]
    assert sorted(file.name for file in folder.iterdir()) == files
    assert json.loads((folder / "state.json").read_text()) == {
        "train": {"step": 1, "tokens_seen": 64},
        "engine": {"steps_done": 1},
        "data": {"row": 8},
        "step": 1,
    }
    assert (
        safetensors.torch.load_file(folder / "rng-rank-0.safetensors").keys()
        == get_rng_states(CPU).keys()
    )


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {})
    (tmp_path / "step-1" / "manifest.json").write_text('{"step": 1, "format": 3}')
    with pytest.raises(ProblemsFound) as error:
        store.get_checkpoint(1).load_state()
    assert "a newer titanrun" in problem_of(error)


def test_importing_the_store_leaves_torchs_checkpoint_package_alone() -> None:
    code = (
        "import sys, titanrun.components.checkpoints.checkpoint_store; "
        "print('torch.distributed.checkpoint' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_the_manifest_knows_every_file_and_tensor(tmp_path: Path) -> None:
    save(
        CheckpointStore(folder=tmp_path),
        3,
        {"w": torch.ones(2, 3), "h": torch.ones(1, dtype=torch.bfloat16)},
    )
    folder = tmp_path / "step-3"
    manifest = read_manifest(folder)
    assert manifest.step == 3
    assert manifest.tensors == {"h": "bfloat16[1]", "w": "float32[2, 3]"}
    assert manifest.versions["torch"] == torch.__version__
    on_disk = {
        file.name: file.read_bytes() for file in folder.iterdir() if file.name != MANIFEST_FILE
    }
    assert {name: (entry.size, entry.xxh3_128) for name, entry in manifest.files.items()} == {
        name: (len(content), xxhash.xxh3_128(content).hexdigest())
        for name, content in on_disk.items()
    }


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset % len(content)] ^= 1 << offset % 8
    path.write_bytes(content)


FILES = [
    ".metadata",
    "__0_0.distcp",
    "manifest.json",
    "resolved.yaml",
    "rng-rank-0.safetensors",
    "state.json",
]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_found_and_its_file_named(tmp_path: Path, file: str) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    path = tmp_path / "step-1" / file
    sound = path.read_bytes()
    for offset in range(0, len(sound), max(1, len(sound) // 7)):
        flip(path, offset)
        (reason,) = store.find_damage(1, "always")
        assert file in reason
        path.write_bytes(sound)
    assert store.find_damage(1, "always") == []


HARM: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda path, other: path.unlink(),
    "cut": lambda path, other: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path, other: path.write_bytes(b""),
    "another step's": lambda path, other: shutil.copy(other, path),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("policy", ["always", "sampled", "off"])
def test_harm_to_a_shard_is_found(tmp_path: Path, harm: str, policy: Any) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    save(store, 2)
    HARM[harm](tmp_path / "step-1" / "__0_0.distcp", tmp_path / "step-2" / "__0_0.distcp")
    found = store.find_damage(1, policy)
    if harm == "another step's" and policy == "off":
        assert found == []  # the same size: what off does not promise
    else:
        assert len(found) == 1 and found[0].startswith("__0_0.distcp ")


def test_a_whole_checkpoint_under_another_steps_name_is_found(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    (tmp_path / "step-1").rename(tmp_path / "step-2")
    assert store.find_damage(2, "always") == ["its manifest.json is that of step 1"]


def test_a_manifest_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    path = tmp_path / "step-1" / MANIFEST_FILE
    content = json.loads(path.read_text())
    del content["digest"]
    content["files"]["../../secret"] = {"size": 1, "xxh3_128": ""}
    digest = xxhash.xxh3_128(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()
    path.write_text(json.dumps({**content, "digest": digest}, indent=1, ensure_ascii=False) + "\n")
    assert "leads out of the folder" in store.find_damage(1, "always")[0]


def test_a_rank_never_goes_on_with_the_random_state_of_another(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    folder = tmp_path / "step-1"
    (folder / "rng-rank-0.safetensors").rename(folder / "rng-rank-1.safetensors")
    with pytest.raises(ProblemsFound, match="the RNG states of rank 0"):
        store.get_checkpoint(1).load_rng_states(1)


def test_extra_and_retyped_tensors_are_taken_only_on_request(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1, {"w": torch.tensor([1.5, 2.0]), "gone": torch.ones(1)})
    into = {"w": torch.zeros(2, dtype=torch.bfloat16)}
    for tolerance in (
        LoadTolerance(),
        LoadTolerance(allows_extra=True),
        LoadTolerance(allows_cast=True),
    ):
        with pytest.raises(ProblemsFound, match="does not fit this run"):
            store.get_checkpoint(1).load_tensors(into, tolerance=tolerance)
    store.get_checkpoint(1).load_tensors(
        into, tolerance=LoadTolerance(allows_extra=True, allows_cast=True)
    )
    assert into["w"].tolist() == [1.5, 2.0]


def test_multiples_and_the_best_stay_beside_the_latest(tmp_path: Path) -> None:
    store = CheckpointStore(
        folder=tmp_path, retention=RetentionPolicy(1, keep_every=4, keep_best=2)
    )
    for step, loss in ((1, 3.0), (2, 1.0), (3, None), (4, 2.5), (5, 2.0), (6, 5.0), (7, None)):
        store.save(snapshot(step, {}, validation_loss=loss))
    assert store.list_complete_steps() == [2, 4, 5, 7]


def test_what_is_set_aside_is_no_checkpoint_any_more_but_still_there(tmp_path: Path) -> None:
    store = CheckpointStore(folder=tmp_path)
    save(store, 1)
    moved = store.set_aside(1, "damaged")
    assert store.list_complete_steps() == store.list_all_steps() == []
    assert (moved / MANIFEST_FILE).exists()
    save(store, 1)
    assert (moved / MANIFEST_FILE).exists()


class LooksUp:
    """Pickles as a look-up by name, as Python 3.11.0 to 3.11.3 pickle an enumeration's member."""

    def __init__(self, holder: object, name: str) -> None:
        self.look_up = holder, name

    def __reduce__(self) -> Any:
        return getattr, self.look_up


def test_an_index_looks_up_memory_formats_and_nothing_else() -> None:
    formats = dcp_metadata._MEM_FORMAT_ENCODING
    written = pickle.dumps(LooksUp(formats, "TORCH_PRESERVE_FORMAT"))
    assert IndexUnpickler(io.BytesIO(written)).load() is formats.TORCH_PRESERVE_FORMAT
    for holder, name in (
        (formats, "__init__"),
        (formats, "mro"),
        (dcp_metadata.Metadata, "__class__"),
        (torch.Size, "numel"),
    ):
        with pytest.raises(pickle.UnpicklingError):
            IndexUnpickler(io.BytesIO(pickle.dumps(LooksUp(holder, name)))).load()


OCCUPY: dict[str, Callable[[Path], object]] = {
    "a file": lambda path: path.write_text("notes"),
    "a link to nothing": lambda path: path.symlink_to(path.parent / "gone"),
    "a folder": lambda path: (path / "sub").mkdir(parents=True),
}


@pytest.mark.parametrize("what", OCCUPY)
def test_what_has_the_name_of_a_checkpoint_is_set_aside_once(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Row B12 of the defect list: every save of that step ended with exit code 4."""
    store = CheckpointStore(folder=tmp_path)
    OCCUPY[what](tmp_path / "step-6")
    save(store, 6)
    assert store.find_damage(6, "always") == []
    (aside,) = [path for path in tmp_path.iterdir() if path.name != "step-6"]
    assert aside.name.startswith("step-6.occupied-") and str(aside) in caplog.text
    assert aside.is_symlink() or aside.exists()
    with pytest.raises(ProblemsFound, match="already exists and is never overwritten"):
        save(store, 6)
    assert len(list(tmp_path.iterdir())) == 2


def test_what_to_do_is_told_once_after_all_reasons() -> None:
    found = no_usable_checkpoint_error(Path("run"), {3: ["a is gone"], 9: ["b", "c"]})
    assert [(problem.message, problem.hint is None) for problem in found.problems] == [
        ("run/step-9 cannot be used: b; c", True),
        ("run/step-3 cannot be used: a is gone", False),
    ]
