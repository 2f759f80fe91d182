"""Whole runs on a GPU: memory, no waits of the host, the same bits twice, evidence, checkpoints."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from titanrun.components.checkpoints.async_save import StagingBuffer
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.device import get_peak_memory_bytes, reset_peak_memory, select_device
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.training.loop import TrainLoop
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.train_hook import TrainHook
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
Train = Callable[..., list[dict[str, float]]]


@pytest.fixture
def train(tmp_path: Path, device: torch.device) -> Train:
    """Trains the debug model and returns its metrics."""
    own = "gpu" if device.type == "cuda" else "cpu"

    def run(
        name: str,
        *overrides: str,
        kind: str = own,
        look: Callable[[TrainLoop], None] = lambda loop: None,
    ) -> list[dict[str, float]]:
        folder = tmp_path / name
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        text = resolve_recipe(
            str(ROOT / "recipes/llama3_debug.yaml"),
            [
                f"device={kind}",
                "model.n_layers=2",
                "training.local_batch_size=2",
                "training.seq_len=128",
                "validation.enable=false",
                *overrides,
            ],
            environment={},
            ranks=1,
        ).text
        path = folder / "resolved.yaml"
        path.write_text(text)
        with (
            SignalRequests() as signals,
            build_train_loop(
                load_resolved(path), rendezvous(path, RankInfo()), signals=signals
            ) as loop,
        ):
            look(loop)
            loop.train()
        return list(read_metrics(folder / "metrics.jsonl"))

    return run


SHORT = ("training.steps=6", "lr_scheduler.warmup_steps=2", "metrics.log_freq=1")
UNSAVED = "checkpoint.enable=false"


def test_finds_the_gpu(needs_gpu: None) -> None:
    assert select_device("gpu").type == "cuda"
    reset_peak_memory(torch.device("cuda"))
    kept = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    assert get_peak_memory_bytes(torch.device("cuda")) >= kept.nbytes


def test_the_same_run_gives_the_same_bits(train: Train) -> None:
    first, second = (train(name, *SHORT, UNSAVED, "debug.deterministic=true") for name in "ab")
    assert [line["loss"] for line in first] == [line["loss"] for line in second]


def test_fp32_losses_are_those_of_the_cpu(train: Train) -> None:
    exact = (*SHORT, UNSAVED, "training.mixed_precision_param=float32")
    found, expected = train("gpu", *exact), train("cpu", *exact, kind="cpu")
    assert [line["loss"] for line in found] == pytest.approx(
        [line["loss"] for line in expected], rel=1e-4
    )


class NoWaits(TrainHook):
    """Makes every wait of the host an error from the third step on, until the last."""

    def on_step_end(self, loop: TrainLoop) -> None:
        step = loop.state.step
        if step in (2, loop.config.steps - 1):
            torch.cuda.set_sync_debug_mode("error" if step == 2 else "default")


@pytest.mark.parametrize("loss", ["cross_entropy", "chunked_cross_entropy"])
def test_the_host_waits_for_nothing_between_logged_steps(
    train: Train, loss: str, needs_gpu: None
) -> None:
    def look(loop: TrainLoop) -> None:
        loop.hooks = (*loop.hooks, NoWaits())

    try:
        train(
            "run",
            "training.steps=10",
            "lr_scheduler.warmup_steps=2",
            "metrics.log_freq=10",
            "training.dataloader.pin_memory=true",
            f"loss={loss}",
            UNSAVED,
            look=look,
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_resumed_run_goes_on_with_the_same_bits(train: Train) -> None:
    saving = (*SHORT, "checkpoint={enable: true, interval: 3, async_mode: async_with_pinned_mem}")
    whole = train("whole", *saving, "debug.deterministic=true")

    def stop(loop: TrainLoop) -> None:
        loop.config = type(loop.config)(
            steps=loop.config.steps, log_every=loop.config.log_every, stop_after_step=3
        )

    train("parts", *saving, "debug.deterministic=true", look=stop)
    found = train("parts", *saving, "debug.deterministic=true")
    assert [line["loss"] for line in found] == [line["loss"] for line in whole]


def test_nan_under_stop_leaves_evidence(train: Train, tmp_path: Path) -> None:
    def look(loop: TrainLoop) -> None:
        runner: Any = loop.engine.runner
        loss, bad = runner.loss, []

        def spoiled(logits: torch.Tensor, batch: Any) -> torch.Tensor:
            if loop.state.step + 1 == 3 and torch.is_grad_enabled() and not bad:
                bad.append(batch.tokens)
            is_bad = bool(bad) and torch.equal(bad[0], batch.tokens)
            return loss(logits, batch) * (float("nan") if is_bad else 1.0)

        object.__setattr__(runner, "loss", spoiled)

    with pytest.raises(Exception, match="loss is nan at step 3"):
        train("run", "training.steps=10", "metrics.log_freq=10", UNSAVED, look=look)
    path = tmp_path / "run" / "logs" / "non-finite-step-3-rank-0.json"
    assert json.loads(path.read_text())["weights"] == "of the step"


@pytest.mark.parametrize("is_shared", [False, True])
def test_staging_is_pinned_and_fast(is_shared: bool, needs_gpu: None) -> None:
    gib = 4
    tensors = {f"w{i}": torch.randn(1 << 28, device="cuda") for i in range(gib)}
    stage = StagingBuffer(is_shared=is_shared)
    stage.stage(tensors)
    stage.copies.wait()
    assert stage.buffer.is_pinned()
    torch.cuda.synchronize()
    start = time.perf_counter()
    staged = stage.stage(tensors)
    queued = time.perf_counter() - start
    stage.copies.wait()
    taken = time.perf_counter() - start
    assert all(torch.equal(staged[name], tensor.cpu()) for name, tensor in tensors.items())
    stage.close()
    assert queued < 0.2 * taken
    assert gib * 2**30 / taken > 20e9


def test_expandable_segments_are_on(tmp_path: Path, needs_gpu: None) -> None:
    command = [sys.executable, "-m", "titanrun", "train", str(ROOT / "recipes/llama3_debug.yaml")]
    overrides = ["training.steps=1", "lr_scheduler.warmup_steps=1", "validation.enable=false"]
    folder = f"dump_folder={tmp_path / 'run'}"
    subprocess.run([*command, *overrides, UNSAVED, folder], check=True)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["starts"][-1]["machine"]["allocator"] == "expandable_segments:True"
