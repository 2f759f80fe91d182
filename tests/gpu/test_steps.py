"""Steps of whole runs: no waits of the host, the same bits twice, losses of the CPU, failures."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.runs import LOGGED, UNSAVED, losses_of, resolve_run, train
from titanrun.config.exit_codes import EXIT_OUT_OF_SPACE
from titanrun.distributed.device import CPU, synchronize_device
from titanrun.training.loop import TrainLoop
from titanrun.training.nonfinite import NonFiniteError
from titanrun.training.train_hook import StepInput, TrainHook
from titanrun.worker.rank_main import main

# 256 TB: no machine has as much, and no address space
TOO_LARGE = "model.feed_forward.hidden_dim=274877906944"


def add_hook(hook: TrainHook) -> Any:
    """A function that adds the hook to a loop."""

    def look(loop: TrainLoop) -> None:
        loop.hooks = (*loop.hooks, hook)

    return look


class NoWaits(TrainHook):
    """Makes waits of the host errors from the third step on, until the last."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_step_end(self, loop: TrainLoop) -> None:
        step = loop.state.step
        self.seen.append(step)
        if torch.cuda.is_available() and step in (2, loop.config.steps - 1):
            torch.cuda.set_sync_debug_mode("error" if step == 2 else "default")


@pytest.mark.parametrize("loss", ["cross_entropy", "chunked_cross_entropy"])
def test_no_host_waits(loss: str, tmp_path: Path, device: torch.device) -> None:
    hook = NoWaits()
    train(
        tmp_path,
        device,
        "training.steps=11",
        "metrics.log_freq=11",
        f"training.dataloader.pin_memory={str(device.type != 'cpu').lower()}",
        f"loss={loss}",
        UNSAVED,
        look=add_hook(hook),
    )
    assert hook.seen == list(range(1, 12))


class HostTime(TrainHook):
    """Seconds that the host and the device take for two steps after the first ones."""

    first, steps = 4, 2

    def __init__(self, device: torch.device) -> None:
        self.device, self.start, self.host, self.whole = device, 0.0, 0.0, 0.0

    def on_step_end(self, loop: TrainLoop) -> None:
        if loop.state.step == self.first:
            synchronize_device(self.device)
            self.start = time.perf_counter()
        elif loop.state.step == self.first + self.steps:
            self.host = time.perf_counter() - self.start
            synchronize_device(self.device)
            self.whole = time.perf_counter() - self.start


def measure_host(folder: Path, device: torch.device, *sizes: str) -> HostTime:
    """Train with the sizes, and measure the host."""
    hook = HostTime(device)
    steps = ("training.steps=8", "metrics.log_freq=8", "training.mixed_precision_param=bfloat16")
    train(folder, device, *steps, *sizes, UNSAVED, look=add_hook(hook))
    return hook


@pytest.mark.gpu
def test_host_runs_ahead(tmp_path: Path, gpu: torch.device) -> None:
    """No CPU twin: a CPU computes what it is told at once; the next test runs the measurement."""
    # steps of some 50 ms, of few kernels: the queue of the device holds about a thousand
    hook = measure_host(
        tmp_path,
        gpu,
        "model.dim=2048",
        "model.n_heads=16",
        "training.seq_len=2048",
        "training.local_batch_size=16",
        "training.dataloader.pin_memory=true",
    )
    assert hook.host < 0.5 * hook.whole, f"host {hook.host:.4f} s of {hook.whole:.4f} s"


def test_the_host_of_a_cpu_computes_itself(tmp_path: Path) -> None:
    hook = measure_host(tmp_path, CPU)
    assert 0 < hook.host <= hook.whole


def test_bitwise_rerun(tmp_path: Path, device: torch.device) -> None:
    first, second = (
        train(
            tmp_path / name,
            device,
            "training.steps=6",
            "training.mixed_precision_param=bfloat16",
            "debug.deterministic=true",
            LOGGED,
            UNSAVED,
        )
        for name in "ab"
    )
    assert len(first) == 6 and losses_of(first) == losses_of(second)
    assert [line["grad_norm"] for line in first] == [line["grad_norm"] for line in second]


def test_llama3_debug_curve_is_the_cpu_curve(tmp_path: Path, device: torch.device) -> None:
    exact = ("training.steps=20", "training.mixed_precision_param=float32", LOGGED, UNSAVED)
    found, expected = (
        losses_of(train(tmp_path / name, each, *exact))
        for name, each in (("found", device), ("expected", CPU))
    )
    assert len(found) == 20
    assert found == pytest.approx(expected, rel=1e-4)
    # it learns
    assert found[-1] < 0.8 * found[0]


def test_out_of_memory_exits_7(tmp_path: Path, device: torch.device) -> None:
    path = resolve_run(tmp_path, device, TOO_LARGE, UNSAVED)
    assert main([str(path)]) == EXIT_OUT_OF_SPACE == 7
    logged = (tmp_path / "logs" / "rank-0.log").read_text()
    assert "lower training.local_batch_size" in logged
    assert "total without activations" in logged
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 7)
    # and the process can go on
    assert torch.ones(1000, device=device).sum().item() == 1000


class Spoiled(TrainHook):
    """Makes the loss of a step NaN, each time that its batch is computed."""

    def __init__(self, step: int) -> None:
        self.step, self.batch = step, None

    def on_input_ready(self, loop: TrainLoop, inp: StepInput) -> StepInput:
        if loop.state.step + 1 == self.step:
            (self.batch,) = inp.batches
        return inp

    def spoil(self, loop: TrainLoop) -> None:
        """Add the hook, and replace the loss."""
        loop.hooks = (*loop.hooks, self)
        runner: Any = loop.engine.runner
        loss = runner.loss

        def computed(logits: torch.Tensor, batch: Any) -> torch.Tensor:
            bad: Any = self.batch
            # compared on the host: the loop's batch is there
            is_bad = bad is not None and torch.equal(bad.tokens.cpu(), batch.tokens.cpu())
            return loss(logits, batch) * (float("nan") if is_bad else 1.0)

        object.__setattr__(runner, "loss", computed)


def test_nan_under_stop_leaves_evidence(tmp_path: Path, device: torch.device) -> None:
    with pytest.raises(NonFiniteError, match="loss is nan at step 3"):
        train(
            tmp_path,
            device,
            "training.steps=10",
            "metrics.log_freq=10",
            UNSAVED,
            look=Spoiled(step=3).spoil,
        )
    path = tmp_path / "logs" / "non-finite-step-3-rank-0.json"
    assert json.loads(path.read_text())["weights"] == "of the step"
