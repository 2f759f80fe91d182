"""Stopping and going on changes no bit: losses, weights, optimizer state, batches, random
numbers."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from titanrun.components.checkpoints.dcp_io import read_tensor_metadata, read_tensors
from titanrun.components.checkpoints.spec.manifest import read_manifest
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.hooks.checkpoint_schedule_hook import CheckpointScheduleHook
from titanrun.training.signal_requests import SignalRequests
from titanrun.training.train_hook import TrainResult
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.rank_main import main
from titanrun.worker.worker_job import rendezvous

Run = Callable[..., Path]
NUMBERS = ("loss", "grad_norm", "lr", "tokens_seen")


class SendingAtStep(logging.Handler):
    """Sends this process a signal at the first step that is logged."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def emit(self, record: logging.LogRecord) -> None:
        os.kill(os.getpid(), self.number)


class NotedRows:
    """Deals the rows of a loader, and remembers them."""

    def __init__(self, loader: DistributedDataLoader) -> None:
        self.loader = loader
        self.build_mask: list[list[list[int]]] = []

    def has_next(self) -> bool:
        return self.loader.has_next()

    def collect_metrics(self) -> dict[str, float]:
        return self.loader.collect_metrics()

    def next_samples(self) -> NDArray[np.int64]:
        rows = self.loader.next_samples()
        self.build_mask.append(rows.tolist())
        return rows


def train(
    resolved: Path, on_step: Callable[[int], None] = lambda step: None
) -> tuple[TrainResult, list[list[list[int]]]]:
    """One process's part of a run: how it ended, and the rows it read."""
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved),
            rendezvous(resolved, RankInfo()),
            signals=signals,
            on_step=on_step,
        ) as trainer,
    ):
        source: Any = trainer.source
        source.dataloader = noted = NotedRows(source.dataloader)
        return trainer.train(), noted.build_mask


def sending(number: signal.Signals, *, at: int) -> Callable[[int], None]:
    """A step callback that sends this process a signal once `at` steps are done."""

    def send(step: int) -> None:
        if step == at:
            os.kill(os.getpid(), number)

    return send


def numbers(resolved: Path) -> list[list[float]]:
    """Every logged number that may not change, a row a step."""
    return [
        [line[name] for name in NUMBERS] for line in read_metrics(resolved.parent / "metrics.jsonl")
    ]


def saved(resolved: Path, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint."""
    folder = resolved.parent / "checkpoint" / f"step-{step}"
    tensors = {
        name: torch.empty(layout.shape, dtype=layout.dtype)
        for name, layout in read_tensor_metadata(folder).items()
    }
    read_tensors(folder, tensors)
    return tensors, json.loads((folder / "state.json").read_text())


def assert_same_end(one: Path, other: Path, step: int = 10) -> None:
    assert numbers(one) == numbers(other)
    tensors, state = saved(one, step)
    other_tensors, other_state = saved(other, step)
    assert state == other_state
    assert tensors.keys() == other_tensors.keys()
    assert any(name.startswith("optimizer.") for name in tensors)
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name
    random_states = [
        path.parent / "checkpoint" / f"step-{step}" / "rng-rank-0.safetensors"
        for path in (one, other)
    ]
    assert random_states[0].read_bytes() == random_states[1].read_bytes()


VARIANTS = {
    "plain": [],
    "bf16": ["training.dtype=bfloat16"],
    "mixed_precision": ["training.mixed_precision_param=bfloat16"],
    "recomputing": ["activation_checkpoint=full"],
    "tied": ["model.tie_word_embeddings=true"],
    "foreach": ["optimizer.implementation=foreach"],
}


@pytest.mark.parametrize(
    ("variant", "cut"),
    [
        ("plain", 1),
        ("plain", 5),
        ("plain", 8),
        *((name, 5) for name in VARIANTS if name != "plain"),
    ],
)
def test_ten_steps_are_a_stop_by_sigterm_and_the_rest(run: Run, variant: str, cut: int) -> None:
    uncut, stopped = run("uncut", *VARIANTS[variant]), run("stopped", *VARIANTS[variant])
    _, expected_rows = train(uncut)
    outcome, rows = train(stopped, sending(signal.SIGTERM, at=cut))
    assert (outcome.state, outcome.step) == ("preempted", cut)
    assert outcome.message == f"stopped by SIGTERM after step {cut} of 10, saved"
    outcome, more_rows = train(stopped)
    assert (outcome.state, outcome.step) == ("finished", 10)
    assert rows + more_rows == expected_rows
    assert_same_end(uncut, stopped)


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(run: Run) -> None:
    def die(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    uncut, killed = run("uncut", "checkpoint.interval=4"), run("killed", "checkpoint.interval=4")
    train(uncut)
    with pytest.raises(KeyboardInterrupt):
        train(killed, die)
    _, rows = train(killed)
    assert len(rows) == 6
    assert_same_end(uncut, killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_other_requests_to_stop_save_too(run: Run, number: signal.Signals) -> None:
    outcome, _ = train(run(), sending(number, at=3))
    assert (outcome.state, outcome.step) == ("preempted", 3)
    assert saved(run(), 3)[1]["train"] == {"step": 3, "tokens_seen": 3 * 64}


def test_a_second_ctrl_c_stops_at_once_and_saves_nothing(run: Run) -> None:
    def interrupt_twice(step: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run(), interrupt_twice)
    assert not (run().parent / "checkpoint").exists()


def test_sigusr2_saves_and_goes_on(run: Run) -> None:
    outcome, _ = train(run(), sending(signal.SIGUSR2, at=3))
    assert (outcome.state, outcome.step) == ("finished", 10)
    assert sorted(entry.name for entry in (run().parent / "checkpoint").iterdir()) == [
        "step-10",
        "step-3",
    ]


def test_a_signal_before_the_first_step_changes_nothing(run: Run) -> None:
    train(run(), sending(signal.SIGTERM, at=3))
    before = (run().parent / "metrics.jsonl").read_bytes()
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(run()), rendezvous(run(), RankInfo()), signals=signals
        ) as trainer,
    ):
        os.kill(os.getpid(), signal.SIGTERM)
        outcome = trainer.train()
    assert (outcome.state, outcome.step) == ("preempted", 3)
    assert (run().parent / "metrics.jsonl").read_bytes() == before


def test_without_checkpoints_a_stop_saves_nothing(run: Run) -> None:
    resolved = run("run", "checkpoint.enable=false")
    outcome, _ = train(resolved, sending(signal.SIGTERM, at=3))
    assert outcome.state == "failed"
    assert (
        outcome.message
        == "stopped by SIGTERM after step 3 of 10, nothing saved: this run writes no checkpoints"
    )
    assert not (resolved.parent / "checkpoint").exists()


def test_a_stop_in_the_last_step_is_an_end(run: Run) -> None:
    outcome, _ = train(run(), sending(signal.SIGTERM, at=10))
    assert (outcome.state, outcome.step) == ("finished", 10)


def test_validation_and_checkpoints_change_no_bit_of_training(run: Run, tokens: Path) -> None:
    held_out = f"validation.dataset={{name: tokens, path: {tokens}}}"
    observed = run(
        "observed", "validation.enable=true", "validation.freq=1", held_out, "checkpoint.interval=1"
    )
    plain = run("plain")
    train(observed)
    train(plain)
    assert_same_end(observed, plain)
    lines = read_metrics(observed.parent / "metrics.jsonl")
    assert all("validation/loss" in line for line in lines)
    assert lines[-1]["validation/loss"] < lines[0]["validation/loss"]


def test_recomputing_activations_changes_no_bit(run: Run) -> None:
    kept, recomputed = run("kept"), run("recomputed", "activation_checkpoint=full")
    train(kept)
    train(recomputed)
    assert_same_end(kept, recomputed)


def test_other_data_is_refused_on_resume(run: Run, tokens: Path) -> None:
    train(run(), sending(signal.SIGTERM, at=3))
    np.save(tokens, np.load(tokens)[::-1])
    with pytest.raises(Exception, match="trained on other data") as caught:
        train(run())
    assert caught.value.exit_code == 3


def worker(resolved: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "titanrun.worker", str(resolved)], stderr=subprocess.PIPE, text=True
    )


def wait_for_steps(resolved: Path, steps: int, process: "subprocess.Popen[str]") -> None:
    file = resolved.parent / "metrics.jsonl"
    while not file.exists() or file.read_bytes().count(b"\n") < steps:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


def test_a_worker_process_stopped_by_sigterm_goes_on_bitwise(run: Run) -> None:
    long = ["training.steps=150", "lr_scheduler.total_steps=150"]
    uncut, stopped = run("uncut", *long), run("stopped", *long)
    train(uncut)
    process = worker(stopped)
    wait_for_steps(stopped, 5, process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    status = json.loads((stopped.parent / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("preempted", 75)
    assert status["signal"] == "SIGTERM"
    assert 5 <= status["step"] < 150
    again = worker(stopped)
    assert again.communicate(timeout=60)[1].count("resuming after step") == 1
    assert again.returncode == 0
    assert_same_end(uncut, stopped, step=150)


def test_more_steps_after_weights_alone_go_on_from_the_last_full_checkpoint(run: Run) -> None:
    weights_last = ["checkpoint.last_save_model_only=true", "checkpoint.interval=4"]
    train(run("short", *weights_last))
    longer = ["training.steps=12", "lr_scheduler.total_steps=12"]
    train(run("uncut", *longer, "checkpoint.interval=2"))
    resolved = run("short", *longer, "checkpoint.interval=2")
    outcome, rows = train(resolved)
    assert (outcome.state, outcome.step, len(rows)) == ("finished", 12, 4)
    # step 10 had its weights only, and is whole now
    assert read_manifest(resolved.parent / "checkpoint" / "step-10").holds == "everything"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138), (signal.SIGINT, 130)]
)
def test_a_stop_that_loses_steps_is_a_failure(run: Run, number: signal.Signals, code: int) -> None:
    resolved = run("run", "checkpoint.enable=false")
    with SignalRequests() as signals:
        listening = SendingAtStep(number)
        logging.getLogger("titanrun.steps").addHandler(listening)
        try:
            assert main([str(resolved)], signals=signals) == code
        finally:
            logging.getLogger("titanrun.steps").removeHandler(listening)
    status = json.loads((resolved.parent / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("failed", 1, code)
    notice = "stopping after this step; nothing is saved (checkpoint.enable: false)"
    assert notice in (resolved.parent / "logs" / "rank-0.log").read_text()


def test_saves_by_the_clock_come_between_steps(run: Run) -> None:
    seconds = 0.0

    def tick(step: int) -> None:
        nonlocal seconds
        seconds += 60

    resolved = run("run", "checkpoint.interval=4m")
    with (
        SignalRequests() as signals,
        build_train_loop(
            load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=signals, on_step=tick
        ) as trainer,
    ):
        (hook,) = (hook for hook in trainer.hooks if isinstance(hook, CheckpointScheduleHook))
        hook.schedule.clock = lambda: seconds
        assert trainer.train().state == "finished"
    assert sorted(entry.name for entry in (resolved.parent / "checkpoint").iterdir()) == [
        "step-10",
        "step-4",
        "step-8",
    ]
