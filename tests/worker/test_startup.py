"""What a worker imports, and when: the time to the first step is mostly imports."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.components.data.fragile_server import serve_files

Run = Callable[..., Path]

NEVER_AT_START = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "torchao",
    "datasets",
    "transformers",
    "rich",
    "sympy",
)


def loaded_by(code: str, *arguments: str) -> list[str]:
    """Which of the heavy modules a fresh process has loaded after `code`."""
    report = (
        f"\nimport json; print(json.dumps([name for name in {NEVER_AT_START!r} if name in "
        f"sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}{report}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_run_without_checkpoints_loads_nothing_it_does_not_use(run: Run) -> None:
    resolved = run("run", "checkpoint.enable=false", "training.steps=2")
    code = "from titanrun.worker.rank_main import main\nassert main(sys.argv[1:]) == 0"
    assert loaded_by(code, str(resolved)) == []


def test_what_writes_checkpoints_is_loaded_before_a_signal_can_ask_for_one(run: Run) -> None:
    code = """
from titanrun.training.checkpoint_manager import CheckpointManager
from titanrun.worker.rank_main import main

save = CheckpointManager.save
loaded = []

def watched(self, **options):
    loaded.append("torch.distributed.checkpoint" in sys.modules)
    save(self, **options)

CheckpointManager.save = watched
assert main(sys.argv[1:]) == 0
assert loaded == [True]
"""
    loaded_by(code, str(run("run", "training.steps=2", "checkpoint.interval=2")))


def start_with(number: signal.Signals, resolved: Path) -> "subprocess.CompletedProcess[str]":
    """A worker that is sent a signal before Python itself is up; it waits as the launcher makes it
    wait."""
    code = (
        "import os, signal, sys\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [{number}]); os.kill(os.getpid(), {number})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'titanrun.worker', sys.argv[1]])"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(resolved)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_while_the_worker_starts_is_a_clean_end(run: Run, number: signal.Signals) -> None:
    resolved = run()
    done = start_with(number, resolved)
    assert (done.returncode, done.stderr) == (
        75,
        f"stopped by {number.name} before the first step\n"
        f"next: titanrun resume {resolved.parent}\n",
    )
    status = json.loads((resolved.parent / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("preempted", 0, 75)


def refuse_all_but_the_size(first: int, end: int | None) -> int | None:
    return None if end is not None and end - first <= 1 else 503


def test_a_stop_while_the_first_batch_waits_for_its_data_is_a_clean_end(run: Run) -> None:
    with serve_files() as server:
        server.files["a.jsonl"] = b'{"text": "once"}\n' * 100
        server.choose_fault["a.jsonl"] = refuse_all_but_the_size
        stop_while_it_waits(run, f"{server.url}/a.jsonl")


def test_a_stop_while_the_run_waits_for_its_data_is_a_clean_end(run: Run) -> None:
    # no server listens there
    stop_while_it_waits(run, "http://127.0.0.1:1/a.jsonl")


def stop_while_it_waits(run: Run, address: str) -> None:
    resolved = run(
        "run",
        f'training.dataset={{name: text, path: "{address}", streaming: true}}',
        "training.dataloader.retry_timeout=5m",
        "tokenizer=tiny",
        "model.vocab_size=4096",
    )
    command = [sys.executable, "-m", "titanrun.worker", str(resolved)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stderr is not None
        assert any("cannot be read" in line for line in worker.stderr)
        worker.send_signal(signal.SIGTERM)
        last_lines = worker.stderr.read().splitlines()[-2:]
    assert (worker.returncode, last_lines) == (
        75,
        ["stopped by SIGTERM before the first step", f"next: titanrun resume {resolved.parent}"],
    )


def test_a_save_asked_for_while_the_worker_starts_waits_for_a_step(run: Run) -> None:
    resolved = run("run", "training.steps=3")
    assert start_with(signal.SIGUSR2, resolved).returncode == 0
    assert sorted(entry.name for entry in (resolved.parent / "checkpoint").iterdir()) == [
        "step-1",
        "step-3",
    ]
