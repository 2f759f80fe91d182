"""CPU seconds of commands as whole processes.

The smallest of several runs counts, since noise only adds.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEBUG_RECIPE = str(ROOT / "recipes" / "llama3_debug.yaml")
FIRST_STEP = (
    "training.local_batch_size=1",
    "training.seq_len=64",
    "training.steps=1",
    "lr_scheduler.warmup_steps=1",
    "checkpoint.enable=false",
    "validation.enable=false",
)
ONE_STEP = """
import time, torch
from titanrun.models.llama3.model import Llama3
from titanrun.recipe.resolving.resolve import resolve
torch.set_num_threads(1)
run = resolve({recipe!r}, environment={{}}).run
model = Llama3(run.model, seq_len=64)
model.init_weights()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
started = time.process_time()
logits = model(torch.zeros(1, 64, dtype=torch.long)).flatten(0, 1)
torch.nn.functional.cross_entropy(logits, torch.zeros(64, dtype=torch.long)).backward()
optimizer.step()
print(time.process_time() - started)
"""


def cpu_seconds(command: list[str], runs: int) -> float:
    """Return the smallest user + system time of `runs` runs."""
    return min(one_run(command) for _ in range(runs))


def one_run(command: list[str]) -> float:
    """Return user + system seconds of one run and its children.

    Raises:
        CalledProcessError: The run fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def startup_report(runs: int) -> None:
    """Print each figure beside its target."""
    titanrun = [sys.executable, "-m", "titanrun"]
    show("titanrun --help", cpu_seconds([*titanrun, "--help"], runs), 0.15)
    show(
        "titanrun validate recipes/llama3_debug.yaml",
        cpu_seconds([*titanrun, "validate", DEBUG_RECIPE], runs),
        0.30,
    )
    torch_import = cpu_seconds([sys.executable, "-c", "import torch"], runs)
    done = subprocess.run(
        [sys.executable, "-c", ONE_STEP.format(recipe=DEBUG_RECIPE)],
        check=True,
        capture_output=True,
        text=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        first_step = min(
            one_run(
                [
                    *titanrun,
                    "train",
                    DEBUG_RECIPE,
                    *FIRST_STEP,
                    "device=cpu",
                    f"dump_folder={folder}/{number}",
                ]
            )
            for number in range(runs)
        )
    budget = torch_import + float(done.stdout) + 1.2
    show("titanrun train to the end of step 1 (batch 1, length 64)", first_step, budget)
    print(
        f"  of which import torch {torch_import:.2f} s and one bare step {float(done.stdout):.2f} s"
    )


def workers_report(runs: int) -> None:
    """Print what two workers take as a share of what one takes.

    Measured until training begins, and until one step is done and they have ended. The smallest
    wall times count, measured in turn. The first line of a run's log is written when everything
    is built, before step 1.
    """
    command = [sys.executable, "-m", "titanrun", "train", DEBUG_RECIPE, *FIRST_STEP, "device=cpu"]
    built: dict[int, list[float]] = {1: [], 2: []}
    ended: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            for count in built:
                run, began = Path(folder, f"{count}-{number}"), time.time()
                one_run([*command, f"launch.nproc_per_node={count}", f"dump_folder={run}"])
                ended[count].append(time.time() - began)
                built[count].append(first_logged(run / "logs" / "rank-0.log") - began)
    figures = (
        ("until training begins", built, "target 1.7"),
        ("to the end of step 1 and of the run", ended, "no target"),
    )
    for what, seconds, target in figures:
        one, two = min(seconds[1]), min(seconds[2])
        print(
            f"two workers {what}: {two:.2f} s, {two / one:.2f} of one worker's {one:.2f} s "
            f"({target})"
        )


def first_logged(log: Path) -> float:
    """When the first line of a log was written, in seconds since the epoch."""
    with log.open() as lines:
        return (
            datetime.strptime(" ".join(next(lines).split()[:2]), "%Y-%m-%d %H:%M:%S,%f")
            .astimezone()
            .timestamp()
        )


def show(what: str, seconds: float, target: float) -> None:
    """One figure, its target, and whether it is met."""
    print(
        f"{what:<58} {seconds:6.3f} s CPU  target {target:.2f}  "
        f"{'met' if seconds <= target else 'MISSED'}"
    )
