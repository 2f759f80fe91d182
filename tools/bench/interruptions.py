"""What checkpoints cost a run of the debug model.

A save beside training, a stop by SIGTERM, and a start after SIGKILL.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from startup import DEBUG_RECIPE, cpu_seconds
from titanrun.components.checkpoints.spec.manifest import is_checkpoint, list_step_folders
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous

SETTINGS = (
    "device=cpu",
    "checkpoint.enable=true",
    "validation.enable=false",
    "metrics.log_freq=1",
    "lr_scheduler.warmup_steps=2",
)
# short steps, so that what is not a step shows
SMALL = ("training.local_batch_size=2", "training.seq_len=64")
ENDLESS = "training.steps=1000"
LOOK_SECONDS = 0.002
TICKS = os.sysconf("SC_CLK_TCK")


def interruptions_report(runs: int) -> None:
    """Print each figure beside its target."""
    with tempfile.TemporaryDirectory(prefix="titanrun-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        step, stall, _ = one_run_in_here(folder / "beside", "async", "training.steps=8")
        print(
            f"async save: a step takes {step * 1e3:.0f} ms, training waits {stall * 1e3:.0f} ms "
            f"for a save (target: one step)"
        )
        step, save, _ = one_run_in_here(folder / "waiting", "disabled", *SMALL, "training.steps=16")
        late = sorted(seconds_to_committed(folder / f"stopped-{number}") for number in range(runs))
        print(
            f"SIGTERM to committed: {statistics.median(late):.2f} s ({late[0]:.2f} to "
            f"{late[-1]:.2f}; target: a step of {step:.2f} s and "
            f"a save of {save:.2f} s)"
        )
        torch_import = cpu_seconds([sys.executable, "-c", "import torch"], runs)
        again = min(cpu_seconds_to_next_step(folder / f"killed-{number}") for number in range(runs))
        print(
            f"kill to next step: {again:.2f} s CPU (target: import torch {torch_import:.2f} s, "
            f"the load, and 1.5 s)"
        )


def one_run_in_here(folder: Path, mode: str, *settings: str) -> tuple[float, float, int]:
    """Return the median seconds of a step and of what a save takes from training.

    The first of each does not count. The last value is how many saves there were.
    """
    folder.mkdir()
    overrides = [*SETTINGS, f"checkpoint.async_mode={mode}", "checkpoint.interval=2", *settings]
    (folder / "resolved.yaml").write_text(
        resolve_recipe(DEBUG_RECIPE, overrides, environment={}).text
    )
    steps, saves = [], []
    with build_train_loop(
        load_resolved(folder / "resolved.yaml"),
        rendezvous(folder / "resolved.yaml", RankInfo()),
        signals=SignalRequests(),
        on_step=lambda step: steps.append(time.perf_counter()),
    ) as trainer:
        save = trainer.checkpoints.save  # type: ignore[union-attr]

        def timed(**options: object) -> None:
            start = time.perf_counter()
            save(**options)  # type: ignore[arg-type]
            saves.append(time.perf_counter() - start)

        type(trainer.checkpoints).save = lambda self, **options: timed(**options)  # type: ignore[method-assign,union-attr,assignment]
        try:
            trainer.train()
        finally:
            type(trainer.checkpoints).save = save.__func__  # type: ignore[method-assign,union-attr]
    between = [after - before for before, after in pairwise(steps)]
    return statistics.median(between), statistics.median(saves[1:-1]), len(saves)


def seconds_to_committed(folder: Path) -> float:
    """From a SIGTERM during training until the checkpoint has its name."""
    process = training(folder, *SMALL, ENDLESS, "checkpoint.interval=1000")
    wait_for(lambda: steps_done(folder) >= 3, process)
    start = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    wait_for(
        lambda: any(map(is_checkpoint, list_step_folders(folder / "checkpoint").values())), process
    )
    taken = time.perf_counter() - start
    process.wait()
    return taken


def cpu_seconds_to_next_step(folder: Path) -> float:
    """CPU seconds of a run that goes on after a SIGKILL, until its first step is in the metrics."""
    settings = (*SMALL, ENDLESS, "checkpoint.interval=2")
    process = training(folder, *settings)
    wait_for(lambda: is_checkpoint(folder / "checkpoint" / "step-2"), process)
    process.kill()
    process.wait()
    done = steps_done(folder)
    process = training(folder, *settings)
    wait_for(lambda: steps_done(folder) > done, process)
    used = used_by(process)
    process.kill()
    process.wait()
    return used


def training(folder: Path, *overrides: str) -> "subprocess.Popen[bytes]":
    """Start a run of the debug model as a user does: one process, one thread."""
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        DEBUG_RECIPE,
        *SETTINGS,
        *overrides,
        f"dump_folder={folder}",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )


def steps_done(folder: Path) -> int:
    """Count the lines in the metrics of a run."""
    file = folder / "metrics.jsonl"
    whole = (
        [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if file.exists()
        else []
    )
    return sum("loss" in json.loads(line) for line in whole)


def used_by(process: "subprocess.Popen[bytes]") -> float:
    """User and system seconds of a process that runs."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_for(is_so: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Until it is so. Raises where the process ended before."""
    while not is_so():
        if process.poll() is not None and not is_so():
            raise RuntimeError(f"the run ended with {process.returncode}")
        time.sleep(LOOK_SECONDS)
