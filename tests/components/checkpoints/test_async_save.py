"""Saves beside training: the copy is made first, is exact, and errors come back."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from titanrun.components.checkpoints.async_save import AsyncSaver, StagingBuffer
from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.distributed.host_copies import HostCopies, PageLock


def snapshot(step: int, tensors: dict[str, torch.Tensor]) -> Snapshot:
    return Snapshot(step=step, tensors=tensors, state={}, rng={}, resolved_yaml="")


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_copy_is_exact_and_apart(is_shared: bool) -> None:
    tensors = {
        "odd": torch.tensor([True, False, True]),
        "count": torch.tensor(7),
        "strided": torch.randn(4, 6).bfloat16()[:, ::2],
        "empty": torch.zeros(0, 3),
        "special": torch.tensor([float("nan"), -0.0, 1e-45]),
    }
    stage = StagingBuffer(is_shared=is_shared)
    staged = stage.stage(tensors)
    assert staged.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert staged[name].dtype == tensor.dtype
        assert staged[name].equal(tensor) or name == "special"
    assert staged["special"].view(torch.int32).equal(tensors["special"].view(torch.int32))
    tensors["count"].fill_(8)
    assert staged["count"].item() == 7
    address = stage.buffer.data_ptr()
    assert stage.stage(tensors)["count"].item() == 8
    assert stage.buffer.data_ptr() == address


def test_what_changes_during_the_save_is_not_saved(tmp_path: Path) -> None:
    store, may_write = CheckpointStore(folder=tmp_path), threading.Event()

    def save(given: Snapshot) -> None:
        assert may_write.wait(30)
        store.save(given)

    saves = AsyncSaver(save, StagingBuffer())
    weight = torch.ones(3)
    saves.start_save(snapshot(1, {"w": weight}), lambda: None)
    weight.fill_(5)
    saves.raise_if_failed()
    may_write.set()
    saves.close()
    into = {"w": torch.zeros(3)}
    store.get_checkpoint(1).load_tensors(into)
    assert into["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "ask",
    [
        AsyncSaver.wait,
        AsyncSaver.close,
        lambda saves: saves.start_save(snapshot(2, {}), lambda: None),
    ],
)
def test_an_error_comes_back_once(ask: Callable[[AsyncSaver], None]) -> None:
    def save(given: Snapshot) -> None:
        raise OSError(28, "No space left on device")

    saves = AsyncSaver(save, StagingBuffer())
    saves.start_save(snapshot(1, {}), lambda: None)
    with pytest.raises(OSError, match="No space left"):
        ask(saves)
    saves.close()


class Driver:
    """Stands in for the accelerator's driver, which locks pages or refuses to."""

    def __init__(self, *, accepts: bool = True, available: int = 1 << 40) -> None:
        self.locked: list[int] = []
        self.accepts, self.available = accepts, available

    def register(self, buffer: torch.Tensor) -> bool:
        if self.accepts:
            self.locked.append(buffer.data_ptr())
        return self.accepts

    def unregister(self, buffer: torch.Tensor) -> None:
        self.locked.remove(buffer.data_ptr())

    def stage(self, *, is_shared: bool) -> StagingBuffer:
        lock = PageLock(self.register, self.unregister, lambda: self.available)
        return StagingBuffer(is_shared=is_shared, page_lock=lock, needs_lock=lambda tensors: True)


@pytest.mark.parametrize("is_shared", [False, True])
def test_both_kinds_of_buffers_lock_their_pages_and_unlock_them(is_shared: bool) -> None:
    driver = Driver()
    stage = driver.stage(is_shared=is_shared)
    stage.stage({"w": torch.ones(100)})
    assert driver.locked == [stage.buffer.data_ptr()]
    assert stage.stage({"w": torch.ones(200)})["w"].sum() == 200
    assert driver.locked == [stage.buffer.data_ptr()]
    stage.close()
    assert driver.locked == []


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver(accepts=False), "the driver refused"),
        (Driver(available=1000), "it needs 896 bytes, more than half of the 1,000 available"),
    ],
)
def test_memory_that_cannot_be_locked_is_used_as_it_is(
    driver: Driver, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = driver.stage(is_shared=False)
    for size in (200, 201):
        staged = stage.stage({"w": torch.ones(size), "x": torch.ones(1)})
        assert staged["w"].sum() == size
    assert driver.locked == []
    (record,) = caplog.records
    assert reason in record.getMessage()


def test_the_buffer_is_hardly_larger_than_its_tensors() -> None:
    # 90 GiB, which an allocator of powers of two would turn into 128
    layers = {f"layers.{i}.w": torch.empty(2**31 + i, device="meta") for i in range(11)}
    stage = StagingBuffer(needs_lock=lambda tensors: False)
    sizes: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "titanrun.components.checkpoints.async_save.torch.empty",
            lambda size, **_: sizes.append(size),
        )
        stage._allocate(layers)
    needed = sum(tensor.numel() * 4 for tensor in layers.values())
    assert needed <= sizes[0] < 1.03 * needed
    assert all(slot.offset % 64 == 0 for slot in stage.slices.values())


def test_the_writer_waits_for_the_copies() -> None:
    events: list[str] = []

    class Copies(HostCopies):
        def wait(self) -> None:
            events.append("copied")

    stage = StagingBuffer()
    stage.copies = Copies()
    saves = AsyncSaver(lambda snapshot: events.append("written"), stage)
    saves.start_save(snapshot(1, {"w": torch.ones(3)}), lambda: events.append("committed"))
    saves.close()
    assert events == ["copied", "written", "committed"]


def test_linux_kills_the_writer_with_its_parent(tmp_path: Path) -> None:
    """What the kernel was told is read back: `PR_GET_PDEATHSIG` of prctl(2)."""
    script = """if True:
        import ctypes, multiprocessing, sys
        from pathlib import Path
        from titanrun.components.checkpoints.spec.retention import RetentionPolicy
        from titanrun.components.checkpoints.writer_process import run_checkpoint_writer

        def tell():
            signal = ctypes.c_int()
            ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
            raise SystemExit(signal.value)

        connection, _ = multiprocessing.Pipe()
        run_checkpoint_writer(connection, Path(sys.argv[1]), RetentionPolicy(), tell)
    """
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == signal.SIGKILL
