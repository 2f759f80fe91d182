"""Saves during training: the bits of a resumed run, and the copies from the device."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.runs import LOGGED, UNSAVED, losses_of, train
from titanrun.components.checkpoints.async_save import StagingBuffer
from titanrun.distributed.host_copies import PageLock
from titanrun.training.loop import TrainLoop
from titanrun.training.train_hook import StepInput, TrainHook

GIB = 2**30
MODES = ["async", "async_with_pinned_mem"]


def stop_after(step: int) -> Any:
    """A function that lets a loop stop early, as if it had been told to."""

    def look(loop: TrainLoop) -> None:
        loop.config = type(loop.config)(
            steps=loop.config.steps, log_every=loop.config.log_every, stop_after_step=step
        )

    return look


@pytest.mark.parametrize("mode", MODES)
def test_async_save_and_resume_bitwise(mode: str, tmp_path: Path, device: torch.device) -> None:
    run = (
        "training.steps=6",
        "training.mixed_precision_param=bfloat16",
        "debug.deterministic=true",
        LOGGED,
    )
    saving = (*run, f"checkpoint={{enable: true, interval: 2, async_mode: {mode}}}")
    whole = train(tmp_path / "whole", device, *run, UNSAVED)
    train(tmp_path / "parts", device, *saving, look=stop_after(3))
    found = train(tmp_path / "parts", device, *saving)
    assert [line["step"] for line in found] == list(range(1, 7))
    assert losses_of(found) == losses_of(whole)


class Locked:
    """Stands in for the driver on a CPU: notes which memory it is to lock."""

    def __init__(self) -> None:
        self.pages: list[int] = []

    def register(self, buffer: Tensor) -> bool:
        self.pages.append(buffer.data_ptr())
        return True

    def unregister(self, buffer: Tensor) -> None:
        self.pages.remove(buffer.data_ptr())

    def is_pinned(self, buffer: Tensor) -> bool:
        return buffer.data_ptr() in self.pages


@pytest.fixture
def stage(request: pytest.FixtureRequest, device: torch.device) -> Iterator[tuple[Any, Any]]:
    """A buffer, shared as the test says, and the function that asks whether memory is locked."""
    if device.type == "cpu":
        locked = Locked()
        buffer = StagingBuffer(
            is_shared=request.param,
            page_lock=PageLock(locked.register, locked.unregister),
            needs_lock=lambda _: True,
        )
        yield buffer, locked.is_pinned
    else:
        buffer = StagingBuffer(is_shared=request.param)
        yield buffer, Tensor.is_pinned
    buffer.close()


def draw_tensors(device: torch.device) -> dict[str, Tensor]:
    """Tensors of several dtypes and sizes, the last one large."""
    generator = torch.Generator().manual_seed(0)
    drawn = {
        "vector": torch.randn(77, generator=generator),
        "bf16": torch.randn(33, 5, generator=generator).bfloat16(),
        "codes": torch.randint(255, (1000,), generator=generator, dtype=torch.uint8),
        "matrix": torch.randn(1024, 1024, generator=generator),
    }
    return {name: tensor.to(device) for name, tensor in drawn.items()}


def check_copies(buffer: StagingBuffer, device: torch.device) -> None:
    """Stage twice: the second time the device changes the tensors as soon as it may."""
    for _ in range(2):
        tensors = draw_tensors(device)
        expected = {name: tensor.cpu().clone() for name, tensor in tensors.items()}
        staged = buffer.stage(tensors)
        buffer.copies.wait_on_device()
        for tensor in tensors.values():
            tensor.zero_()
        buffer.copies.wait()
        for name, tensor in staged.items():
            assert tensor.device.type == "cpu" and torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("stage", [False], ids=["thread"], indirect=True)
def test_staging_is_pinned(stage: tuple[Any, Any], device: torch.device) -> None:
    buffer, is_pinned = stage
    check_copies(buffer, device)
    assert is_pinned(buffer.buffer)
    buffer.close()
    assert not is_pinned(buffer.buffer)


@pytest.mark.parametrize("stage", [True], ids=["process"], indirect=True)
def test_process_mode_registers_shared_memory(stage: tuple[Any, Any], device: torch.device) -> None:
    buffer, is_pinned = stage
    check_copies(buffer, device)
    # the memory that the writer's process maps, and not a copy of it
    assert buffer.buffer.is_shared() and is_pinned(buffer.buffer)
    buffer.close()
    assert buffer.buffer.is_shared() and not is_pinned(buffer.buffer)


@pytest.mark.gpu
@pytest.mark.parametrize("is_shared", [False, True], ids=["thread", "process"])
def test_staging_reaches_20_gb_per_second(is_shared: bool, gpu: torch.device) -> None:
    """No CPU twin: it is the bus between a GPU and its host that is measured."""
    tensors = {f"w{i}": torch.randn(GIB // 4, device=gpu) for i in range(2)}
    num_bytes = sum(tensor.nbytes for tensor in tensors.values())
    if is_shared and shutil.disk_usage("/dev/shm").free < 2 * num_bytes:
        pytest.skip("this machine has too little shared memory: see df /dev/shm")
    stage = StagingBuffer(is_shared=is_shared)
    # locks the pages
    stage.stage(tensors)
    stage.copies.wait()
    torch.accelerator.synchronize(gpu)
    start = time.perf_counter()
    stage.stage(tensors)
    queued = time.perf_counter() - start
    stage.copies.wait()
    taken = time.perf_counter() - start
    stage.close()
    assert queued < 0.2 * taken
    assert num_bytes / taken > 20e9, f"{num_bytes / taken / 1e9:.1f} GB/s"


class StepTimes(TrainHook):
    """Milliseconds of the device from the input of each step to the end of its update."""

    def __init__(self) -> None:
        self.events: dict[int, list[Any]] = {}

    def on_input_ready(self, loop: TrainLoop, inp: StepInput) -> StepInput:
        self.events[loop.state.step + 1] = [self.record()]
        return inp

    def on_step_end(self, loop: TrainLoop) -> None:
        self.events[loop.state.step].append(self.record())

    def record(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def measure(self) -> dict[int, float]:
        """Wait for the device, and return the time of each step."""
        torch.accelerator.synchronize()
        return {step: start.elapsed_time(end) for step, (start, end) in self.events.items()}


@pytest.mark.gpu
def test_training_goes_on_while_staging(tmp_path: Path, gpu: torch.device) -> None:
    """No CPU twin: a CPU copies at once, and has no events; tests/components has the order."""
    hook = StepTimes()

    def look(loop: TrainLoop) -> None:
        loop.hooks = (*loop.hooks, hook)

    # 350 MB of weights and states, copied during some 40 ms of a step
    train(
        tmp_path,
        gpu,
        "training.steps=16",
        "metrics.log_freq=16",
        "training.mixed_precision_param=bfloat16",
        "model.dim=1024",
        "training.seq_len=2048",
        "training.local_batch_size=32",
        "training.dataloader.pin_memory=true",
        "checkpoint={enable: true, interval: 5, async_mode: async, keep_latest_k: 2}",
        look=look,
    )
    times = hook.measure()
    # the first save locks the pages, and the first steps load kernels
    saving, others = times.pop(11), [times[step] for step in (7, 8, 9, 10, 13, 14, 15)]
    assert saving < 1.1 * median(others), f"{saving:.1f} ms beside {median(others):.1f} ms"
