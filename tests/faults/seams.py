"""Where faults are put in: what a test process exchanges before it runs the worker. The product
knows nothing of them.

Each seam is a function of a module, so that another process can be told to install it.
"""

import errno
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch

from titanrun.components.checkpoints.spec.hashed_file import HashedFile
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.metrics import async_tracker
from titanrun.components.metrics.tensorboard_tracker import TensorBoardTracker
from titanrun.distributed.dtensor import to_local
from titanrun.training.data_source import DataSource
from titanrun.training.engine import Engine
from titanrun.training.train_hook import StepInput
from titanrun.worker.status_file import StatusFile

Seam = Callable[..., None]


def die() -> NoReturn:
    """The end without any warning, as the kernel gives it."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives SIGKILL")


def kill_before_opening(name: str, step: int) -> None:
    """Dies when the file of that name is opened in the checkpoint of `step`."""
    begin = HashedFile.__init__

    def opening(self: HashedFile, path: Path) -> None:
        if path.name == name and path.parent.name.startswith(f"step-{step}."):
            die()
        begin(self, path)

    HashedFile.__init__ = opening  # type: ignore[method-assign]


def kill_amid_writing(name: str, step: int) -> None:
    """Dies when half of the first piece of that file is on disk."""
    begin, write = HashedFile.__init__, HashedFile.write
    chosen: list[HashedFile] = []

    def opening(self: HashedFile, path: Path) -> None:
        begin(self, path)
        if path.name == name and path.parent.name.startswith(f"step-{step}."):
            chosen.append(self)

    def writing(self: HashedFile, data: Any) -> int:
        if self not in chosen:
            return write(self, data)
        write(self, memoryview(data).cast("B")[: len(data) // 2])
        self.flush()
        die()

    HashedFile.__init__, HashedFile.write = opening, writing  # type: ignore[method-assign]


def kill_around_rename(step: int, after: bool) -> None:
    """Dies right before, or right after, the checkpoint of `step` gets its name."""
    rename = Path.rename

    def renaming(self: Path, target: Any) -> Path:
        is_commit = Path(target).name == f"step-{step}"
        if is_commit and not after:
            die()
        moved = rename(self, target)
        if is_commit:
            die()
        return moved

    Path.rename = renaming  # type: ignore[method-assign]


def kill_amid_export() -> None:
    """Dies when the weights of a Hugging Face folder are to be written, beside what is written
    already."""
    safetensors.torch.save_file = lambda *_, **__: die()


def kill_amid_gathering() -> None:
    """Dies when the first weight of an export is gathered from all ranks."""
    Engine.state_dict_stream = lambda *_, **__: die()  # type: ignore[method-assign, return-value, assignment]


def kill_amid_purge() -> None:
    """Dies when one file of a folder that is being deleted is gone."""

    def half(folder: Path, **_: Any) -> None:
        if any(folder.iterdir()):
            sorted(folder.iterdir())[0].unlink()
            die()

    shutil.rmtree = half  # type: ignore[assignment]


def kill_after(seconds: float) -> None:
    """Dies some time after the worker begins to train, whatever it does then."""
    signal.signal(signal.SIGALRM, lambda *_: die())
    signal.setitimer(signal.ITIMER_REAL, seconds)


def signals_amid_step(step: int, *numbers: int) -> None:
    """Signals arrive while a step computes."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            for number in numbers:
                os.kill(os.getpid(), number)
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def signals_amid_save(step: int, number: int) -> None:
    """A signal arrives while the checkpoint of `step` is written, and one before it that asked for
    the save."""
    signals_amid_step(step, number)
    write = HashedFile.write

    def writing(self: HashedFile, data: Any) -> int:
        os.kill(os.getpid(), number)
        return write(self, data)

    HashedFile.write = writing  # type: ignore[method-assign]


def files_end_at(step: int, size: int, until: int | None = None) -> None:
    """From `step` on no file grows beyond `size`, as on a full disk; until another step."""
    beat = StatusFile.record_step

    def beating(self: StatusFile, done: int) -> None:
        beat(self, done)
        limit = (
            resource.RLIM_INFINITY
            if until is not None and done >= until
            else size
            if done >= step
            else resource.RLIM_INFINITY
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    StatusFile.record_step = beating  # type: ignore[method-assign]


def memory_ends_at(step: int) -> None:
    """From `step` on the process gets no more memory."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, resource.RLIM_INFINITY))
            torch.empty(2**30)
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def device_is_full(step: int) -> None:
    """The device says that it has no more memory."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def loss_times(factor: Callable[[Engine], float]) -> None:
    """Every loss in training is that many times what it was."""
    begin = Engine.__init__

    def beginning(self: Engine, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        passes: Any = self.runner
        loss = passes.loss
        self.runner = replace(
            passes,
            loss=lambda *given: loss(*given) * (factor(self) if torch.is_grad_enabled() else 1.0),
        )

    Engine.__init__ = beginning  # type: ignore[method-assign]


def loss_is_nan(first: int, last: int) -> None:
    """The loss of some steps is NaN, on this rank."""
    loss_times(lambda engine: math.nan if first <= engine.steps_done + 1 <= last else 1.0)


def data_is_nan(first: int, last: int) -> None:
    """The loss of some global batches is NaN, wherever in the run they come."""
    next_input, batches = DataSource.next_input, {"seen": 0}

    def reading(self: DataSource) -> StepInput:
        batches["seen"] += 1
        return next_input(self)

    DataSource.next_input = reading  # type: ignore[method-assign]
    loss_times(lambda engine: math.nan if first <= batches["seen"] <= last else 1.0)


def file_changes(step: int, path: Path, how: str) -> None:
    """After `step`, somebody does something to a file that the run reads."""
    beat = StatusFile.record_step

    def changed() -> None:
        whole = path.read_bytes()
        if how == "removed":
            path.unlink()
        elif how == "cut short":
            os.truncate(path, len(whole) // 2)
        elif how == "written over":
            with path.open("r+b") as file:
                file.seek(len(whole) // 2)
                file.write(bytes(64))
        else:
            path.unlink()
            path.write_bytes(whole)

    def beating(self: StatusFile, done: int) -> None:
        beat(self, done)
        if done == step:
            changed()

    StatusFile.record_step = beating  # type: ignore[method-assign]


def rows_stall(step: int, seconds: float) -> None:
    """Reading the rows of a step takes long."""
    next_rows, batches = DistributedDataLoader.next_samples, {"read": 0}

    def rows_stall(self: DistributedDataLoader) -> Any:
        batches["read"] += 1
        if batches["read"] == step:
            time.sleep(seconds)
        return next_rows(self)

    DistributedDataLoader.next_samples = rows_stall  # type: ignore[method-assign]


def rows_are_noted(file: str, dies_in: int) -> None:
    """The first id of every row that this rank reads goes into a file, a line of [step, ids] a
    step; it dies when it is to read a step."""
    next_rows = DistributedDataLoader.next_samples

    def noting(self: DistributedDataLoader) -> Any:
        step = self._position // self.global_batch_size + 1
        if step == dies_in:
            die()
        rows = next_rows(self)
        with Path(file).open("a", encoding="utf-8") as noted:
            noted.write(json.dumps([step, rows[:, 0].tolist()]) + "\n")
        return rows

    DistributedDataLoader.next_samples = noting  # type: ignore[method-assign]


def loading_process_is_killed(step: int) -> None:
    """One of the processes that read ahead is killed before a step."""
    next_rows, batches = DistributedDataLoader.next_samples, {"read": 0}

    def killing(self: DistributedDataLoader) -> Any:
        batches["read"] += 1
        if batches["read"] == step:
            assert self._workers is not None
            os.kill(self._workers._workers[0].process.pid or 0, signal.SIGKILL)
        return next_rows(self)

    DistributedDataLoader.next_samples = killing  # type: ignore[method-assign]


def nothing_counts(step: int) -> None:
    """No label of one step counts."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            for batch in batches:
                batch.loss_mask[:] = False
        return forward_backward(self, batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def building_hangs() -> None:
    """Opening the data never ends."""

    def never(self: DistributedDataLoader, *arguments: Any, **options: Any) -> None:
        time.sleep(10_000)

    DistributedDataLoader.__init__ = never  # type: ignore[method-assign]


def hangs_in(step: int) -> None:
    """A step never ends."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            time.sleep(10_000)
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def stop_process() -> None:
    """What SIGSTOP, a suspended machine or a debugger does: no thread goes on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stops_in(step: int) -> None:
    """The process is stopped in a step."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            stop_process()
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def stops_in_save(step: int) -> None:
    """The process is stopped when it writes its part of the checkpoint of `step`."""
    begin = HashedFile.__init__

    def opening(self: HashedFile, path: Path) -> None:
        if path.parent.name.startswith(f"step-{step}."):
            stop_process()
        begin(self, path)

    HashedFile.__init__ = opening  # type: ignore[method-assign]


def dies_in(step: int, note: str = "") -> None:
    """The process is killed in a step; the file `note` is made right before."""
    forward_backward = Engine.forward_backward

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            if note:
                Path(note).touch()
            die()
        return forward_backward(self, *batches, **options)

    Engine.forward_backward = computing  # type: ignore[method-assign]


def clock_jumps(seconds: float) -> None:
    """The machine's clock is set while the run trains; what only goes forward is left alone."""
    real, calls = time.time, [0]

    def jumping() -> float:
        calls[0] += 1
        return real() + (seconds if calls[0] % 2 else 0.0)

    time.time = jumping


def fails_at(calls: dict[str, int], kind: str, nth: int, number: int = errno.EIO) -> None:
    """Counts a call of one kind, and raises at the n-th."""
    calls[kind] = calls.get(kind, 0) + 1
    if calls[kind] == nth:
        raise OSError(number, os.strerror(number))


def layers_take(seconds: float) -> None:
    """The forward pass of the first layer takes so long."""
    begin = Engine.__init__

    def beginning(self: Engine, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        layer = self.model.get_submodule("layers.0")
        forward = layer.forward

        def slow(*given: Any, **named: Any) -> Any:
            time.sleep(seconds)
            return forward(*given, **named)

        layer.forward = slow  # type: ignore[method-assign]

    Engine.__init__ = beginning  # type: ignore[method-assign]


def bit_flips(name: str, after_passes: int) -> None:
    """One bit of this rank's part of a weight flips when so many passes over a batch are done."""
    forward_backward, calls = Engine.forward_backward, {"done": 0}

    def computing(self: Engine, *batches: Any, **options: Any) -> Any:
        output = forward_backward(self, *batches, **options)
        calls["done"] += 1
        if calls["done"] == after_passes:
            to_local(self.model.get_parameter(name).detach()).view(torch.int32).view(-1)[0] ^= (
                1 << 20
            )
        return output

    Engine.forward_backward = computing  # type: ignore[method-assign]


def console_is(kind: str) -> None:
    """stdout and stderr are closed, full, or a pipe that nobody reads and that holds no more."""
    if kind == "closed":
        os.close(1)
        os.close(2)
        # as Python starts then
        sys.stdout = sys.stderr = None  # type: ignore[assignment]
        return
    target = os.open("/dev/full", os.O_WRONLY) if kind == "full" else fill_pipe()
    os.dup2(target, 1)
    os.dup2(target, 2)


def fill_pipe() -> int:
    """The writing end of a full pipe, whose other end stays open and unread."""
    _, target = os.pipe()
    os.set_blocking(target, False)
    with suppress(BlockingIOError):
        while True:
            os.write(target, bytes(4096))
    os.set_blocking(target, True)
    return target


def nothing() -> None:
    """No fault."""


def several(*faults: tuple[Any, ...]) -> None:
    """Several faults, each a seam and its arguments."""
    for seam, *arguments in faults:
        seam(*arguments)


def gradient_is_inf(step: int) -> None:
    """The gradient of the output head is infinite in one step, the loss is not."""
    optim_step = Engine.optim_step

    def spoiled(self: Engine, **options: Any) -> Any:
        if self.steps_done + 1 == step:
            self.model.get_parameter("output.weight").grad.fill_(math.inf)  # type: ignore[union-attr]
        return optim_step(self, **options)

    Engine.optim_step = spoiled  # type: ignore[method-assign]


def row_is_nan(step: int, name: str, row: int) -> None:
    """A module gives NaN for one row of each pass from a step on."""
    begin = Engine.__init__

    def beginning(self: Engine, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)

        def spoiled(_module: Any, _inputs: Any, output_BTD: torch.Tensor) -> torch.Tensor:
            return (
                output_BTD.index_fill(0, torch.tensor([row]), math.nan)
                if self.steps_done + 1 >= step
                else output_BTD
            )

        self.model.get_submodule(name).register_forward_hook(spoiled)

    Engine.__init__ = beginning  # type: ignore[method-assign]


def loss_is_scaled(step: int, factor: float) -> None:
    """The loss of one step is many times what it was."""
    loss_times(lambda engine: factor if engine.steps_done + 1 == step else 1.0)


def weight_is_nan(step: int) -> None:
    """A weight is spoiled after one step, before it is saved."""
    optim_step = Engine.optim_step

    def spoiled(self: Engine, **options: Any) -> Any:
        update = optim_step(self, **options)
        if self.steps_done == step:
            with torch.no_grad():
                self.model.get_parameter("norm.weight")[0] = math.nan
        return update

    Engine.optim_step = spoiled  # type: ignore[method-assign]


def writes_are_slow(seconds: float) -> None:
    """Each write of a checkpoint takes its time."""
    write = HashedFile.write

    def writing(self: HashedFile, data: Any) -> int:
        time.sleep(seconds)
        return write(self, data)

    HashedFile.write = writing  # type: ignore[method-assign]


def tensorboard_raises() -> None:
    """The tracker fails at each line."""

    def failing(self: TensorBoardTracker, step: int, values: Any) -> None:
        raise ConnectionError("no route to host")

    TensorBoardTracker.log = failing  # type: ignore[method-assign]


def tensorboard_blocks() -> None:
    """The tracker never returns; nobody has half a minute to wait for it."""
    async_tracker.AsyncTracker.__init__.__kwdefaults__["patience_seconds"] = 0.1

    def blocking(self: TensorBoardTracker, step: int, values: Any) -> None:
        time.sleep(10_000)

    TensorBoardTracker.log = blocking  # type: ignore[method-assign]
