"""Weights on their way: whole or not there, the last few kept, in the generator's dtype."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.folder_transport import FolderTransport
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
from titanrun.rl.weight_sync.shared_memory_blocks import (
    BLOCK_PREFIX,
    get_shared_memory_folder,
    open_block_folder,
)
from titanrun.rl.weight_sync.shared_memory_transport import SharedMemoryTransport
from titanrun.rl.weight_sync.transport import WeightTransport, cast_for_generator

BUSES: dict[str, Callable[[Path], WeightTransport]] = {
    "in_process": lambda folder: InProcessTransport(keep=2),
    "shared_memory": lambda folder: SharedMemoryTransport(folder, keep=2, ranks=RankGroup()),
    "file": lambda folder: FolderTransport(folder, keep=2, ranks=RankGroup(), kind="file"),
    "dcp": lambda folder: FolderTransport(folder, keep=2, ranks=RankGroup(), kind="dcp"),
}


def weights(version: int) -> dict[str, Tensor]:
    made = {
        "a.weight": torch.full((3, 5), float(version)),
        "b.bias": torch.full((7,), version, dtype=torch.bfloat16),
    }
    return made | {
        "c.counts": torch.tensor(version),
        "d.weight": torch.full((2, 2), -float(version)),
    }


@pytest.mark.parametrize("kind", BUSES)
def test_the_last_versions_can_be_pulled_and_no_others(tmp_path: Path, kind: str) -> None:
    bus = BUSES[kind](tmp_path / "weights")
    for version in (1, 2, 3):
        sent = weights(version)
        bus.publish(version, sent.items())
        # the trainer goes on writing to its own
        sent["a.weight"].zero_()
    assert bus.list_versions() == [2, 3]
    for version in (2, 3):
        pulled = dict(bus.pull(version))
        assert pulled.keys() == weights(version).keys()
        for name, tensor in weights(version).items():
            assert pulled[name].dtype == tensor.dtype and torch.equal(pulled[name], tensor)
    with pytest.raises(KeyError):
        list(bus.pull(1))
    bus.drop(2)
    assert bus.list_versions() == [3]
    bus.close()


def write_for_ever(folder: Path, kind: str) -> None:
    torch.set_num_threads(1)
    bus, version = BUSES[kind](folder), 1
    while True:
        bus.publish(
            version,
            {f"{number}": torch.full((64, 64), float(version)) for number in range(20)}.items(),
        )
        version += 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared_memory", "file", "dcp"])
def test_a_reader_never_sees_half_a_version_whenever_its_writer_is_killed(
    tmp_path: Path, kind: str
) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(6):
        folder = tmp_path / str(attempt)
        writer = context.Process(target=write_for_ever, args=(folder, kind))
        writer.start()
        bus = BUSES[kind](folder)
        deadline = time.monotonic() + 60
        while not bus.list_versions() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.013 * attempt)
        os.kill(writer.pid, signal.SIGKILL)  # type: ignore[arg-type]
        writer.join()
        assert bus.list_versions()
        for version in bus.list_versions():
            found = dict(bus.pull(version))
            assert len(found) == 20 and all((tensor == version).all() for tensor in found.values())
        bus.close()


def test_parameters_are_cast_and_buffers_are_not() -> None:
    sent = {"weight": torch.ones(2), "expert_bias": torch.ones(2)}
    cast = dict(
        cast_for_generator(
            sent.items(), dtype=torch.bfloat16, parameter_names=frozenset({"weight"})
        )
    )
    assert (cast["weight"].dtype, cast["expert_bias"].dtype) == (torch.bfloat16, torch.float32)
    same = dict(
        cast_for_generator(sent.items(), dtype=torch.float32, parameter_names=frozenset({"weight"}))
    )
    assert all(same[name] is sent[name] for name in sent)


def blocks(pid: int | None = None) -> set[str]:
    """The blocks of a process, by default this one: others may be at work too."""
    own = f"{BLOCK_PREFIX}{os.getpid() if pid is None else pid}-"
    return {path.name for path in get_shared_memory_folder().glob(f"{own}*")}


def open_transport(folder: Path) -> SharedMemoryTransport:
    return SharedMemoryTransport(folder, keep=1, ranks=RankGroup())


def test_shared_memory_is_given_back(tmp_path: Path) -> None:
    before = blocks()
    bus = open_transport(tmp_path)
    for version in range(3):
        bus.publish(version, nn.Linear(4, 4).state_dict().items())
    assert len(blocks() - before) == 1
    bus.close()
    assert blocks() == before


def test_an_index_removes_no_file_that_it_names(tmp_path: Path) -> None:
    """Row B6 of the defect list: whatever path an index named was removed."""
    other = open_transport(tmp_path / "other")
    other.publish(1, weights(1).items())
    in_use = json.loads((tmp_path / "other" / "1.json").read_text())["block"]
    stranger = get_shared_memory_folder() / f"titanrun-test-{os.getpid()}"
    kept = tmp_path / "precious"
    link = get_shared_memory_folder() / f"{BLOCK_PREFIX}{os.getpid()}-link"
    try:
        for path in (kept, stranger):
            path.write_text("precious")
        link.symlink_to(kept)
        for number, named in enumerate(
            [
                *(str(kept), f"../../{kept}", stranger.name, str(stranger), in_use),
                *(str(get_shared_memory_folder() / in_use), link.name, "", ".", "..", None, 7, []),
            ]
        ):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / "3.json").write_text(json.dumps({"block": named, "tensors": {}}))
            open_transport(folder).drop(3)
            assert not (folder / "3.json").exists()
        assert kept.read_text() == stranger.read_text() == "precious" and link.is_symlink()
        (tmp_path / "3.json").write_text(json.dumps({"block": link.name, "tensors": {}}))
        with pytest.raises(KeyError):
            dict(open_transport(tmp_path).pull(3))
        assert dict(other.pull(1)).keys() == weights(1).keys()
    finally:
        stranger.unlink(missing_ok=True)
        link.unlink(missing_ok=True)
        other.close()


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": {"a": [0, [2**40], "float32"]}},
        {"tensors": {"a": [-8, [1], "float32"]}},
        {"tensors": {"a": [0, [1], "load"]}},
        {"tensors": {"a": [0, [True], "float32"]}},
        {"tensors": {"a": [0, [1.5], "float32"]}},
        {"tensors": {"a": 3}},
        {"tensors": []},
    ],
)
def test_an_index_that_describes_no_block_is_a_problem(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    bus = open_transport(tmp_path)
    bus.publish(1, weights(1).items())
    index = json.loads((tmp_path / "1.json").read_text())
    (tmp_path / "1.json").write_text(json.dumps(index | change))
    with pytest.raises(ProblemsFound, match="does not describe weights"):
        list(bus.pull(1))
    bus.close()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"block": "x"}'])
def test_an_index_that_is_none_is_a_problem_and_can_be_dropped(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.json").write_text(text)
    with pytest.raises(ProblemsFound, match="does not describe weights"):
        list(open_transport(tmp_path).pull(1))
    open_transport(tmp_path).drop(1)
    assert not (tmp_path / "1.json").exists()


def test_a_version_without_its_block_is_gone(tmp_path: Path) -> None:
    """A reader made an empty block of that name."""
    before, bus = blocks(), open_transport(tmp_path)
    bus.publish(1, weights(1).items())
    (made,) = blocks() - before
    (get_shared_memory_folder() / made).unlink()
    with pytest.raises(KeyError):
        list(bus.pull(1))
    assert made not in blocks()


def hold_blocks(folder: Path, ready: Any) -> None:
    open_transport(folder).publish(1, {"a": torch.ones(3)}.items())
    with open_block_folder() as own:
        ready.send(own.name)
        time.sleep(600)


def test_blocks_of_runs_that_died_are_removed_at_the_next_start(tmp_path: Path) -> None:
    """Row B6 of the defect list: a killed run left its weights in shared memory."""
    context = multiprocessing.get_context("fork")
    before = blocks()
    here, there = context.Pipe()
    run = context.Process(target=hold_blocks, args=(tmp_path / "killed", there), daemon=True)
    run.start()
    folder = here.recv()
    left = blocks(run.pid)
    assert folder in left and len(left) == 2
    # a live run keeps its own
    living = open_transport(tmp_path / "living")
    living.publish(1, weights(1).items())
    assert left == blocks(run.pid)
    run.kill()
    run.join()
    started = open_transport(tmp_path / "started")
    started.publish(1, weights(1).items())
    assert not blocks(run.pid)
    for bus in (living, started):
        assert dict(bus.pull(1)).keys() == weights(1).keys()
        bus.close()
    assert blocks() == before
