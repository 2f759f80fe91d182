"""Weights on their way: whole or not there, the last few kept, in the generator's dtype."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from titanrun.distributed.object_collectives import RankGroup
from titanrun.rl.weight_sync.folder_transport import FolderTransport
from titanrun.rl.weight_sync.in_process_transport import InProcessTransport
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


def test_shared_memory_is_given_back(tmp_path: Path) -> None:
    def blocks() -> set[str]:
        return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()  # noqa: PTH112, PTH208

    before = blocks()
    bus = SharedMemoryTransport(tmp_path, keep=1, ranks=RankGroup())
    for version in range(3):
        bus.publish(version, nn.Linear(4, 4).state_dict().items())
    mine = {
        name for name in blocks() - before if name.startswith(f"titanrun-weights-{os.getpid()}-")
    }
    assert len(mine) == 1
    bus.close()
    assert not {name for name in blocks() if name in mine}
