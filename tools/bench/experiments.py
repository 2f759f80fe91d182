"""CPU seconds of what people look at runs with.

The live display, lists of many runs, pictures of long ones.
"""

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from startup import cpu_seconds
from titanrun.components.metrics.console_log import RunProgress
from titanrun.components.metrics.live_display import DRAWS_PER_SECOND, LiveDisplay
from titanrun.components.metrics.spec.metrics_file import MetricsFile

METRICS = {
    "loss": 4.123456,
    "grad_norm": 1.5,
    "lr": 8e-4,
    "tps": 12345.6,
    "tflops": 0.123,
    "mfu": 41.0,
    "memory_gib": 0.844,
}
SILENT = {"tokens_seen": 4096, "time/step_seconds": 0.1, "time/data_seconds": 0.01}
RUN_FILES = {
    "run.json": {
        "name": "a",
        "starts": [
            {"time": "2026-01-01T10:00:00+00:00", "decided": {"steps": 30}, "environment": {}}
        ],
    },
    "status.json": {
        "state": "finished",
        "step": 30,
        "pid": 1,
        "host": "a",
        "boot_id": None,
        "heartbeat": 1767261700.0,
        "exit_code": 0,
    },
}


def experiments_report(runs: int) -> None:
    """Print the figures beside their targets."""
    display_report(runs)
    with tempfile.TemporaryDirectory() as folder:
        list_report(Path(folder), min(runs, 3))
    with tempfile.TemporaryDirectory() as folder:
        plot_report(Path(folder), min(runs, 3))


def display_report(runs: int) -> None:
    """Print what the live display and metrics.jsonl take of a core.

    A logged step comes every 100 ms.
    """
    progress, values = RunProgress(10**6), {**METRICS, **SILENT}
    display = LiveDisplay(Console(file=io.StringIO(), width=110, force_terminal=True))
    with tempfile.TemporaryDirectory() as folder:
        file = MetricsFile(Path(folder) / "metrics.jsonl")

        def step() -> None:
            progress.advance(progress.step + 1)
            display.show(progress, values)
            file.write(progress.step, values)

        a_step = min(seconds_each(step, 1000) for _ in range(runs))
        a_draw = min(seconds_each(display._live.refresh, 100) for _ in range(runs))
        file.close()
    display.close()
    share = a_step / 0.1 + a_draw * DRAWS_PER_SECOND
    print(
        f"live display and metrics of steps of 100 ms: {share:.2%} of a core (target: at most 0.5%)"
    )


def seconds_each(call: Callable[[], object], count: int) -> float:
    """CPU seconds of a call."""
    started = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - started) / count


def list_report(folder: Path, runs: int) -> None:
    """Print `runs ls` of 1,000 folders that no index knows, and of 10,000 that one does."""
    ls = [sys.executable, "-m", "titanrun", "runs", "ls", str(folder), "--limit", "10"]
    for number in range(10_000):
        run = folder / f"group{number // 1000}" / f"run{number}"
        run.mkdir(parents=True)
        for name, data in RUN_FILES.items():
            (run / name).write_text(json.dumps(data))
        (run / "metrics.jsonl").write_text(
            "".join(json.dumps({"step": step, **METRICS}) + "\n" for step in range(30))
        )
    group = [*ls[:-3], str(folder / "group0"), *ls[-2:]]
    print(f"runs ls of 1,000 runs without an index: {cpu_seconds(group, 1):.2f} s CPU (target 1)")
    cpu_seconds(ls, 1)
    print(f"runs ls of 10,000 runs with an index: {cpu_seconds(ls, runs):.2f} s CPU (target 1)")


def plot_report(folder: Path, runs: int) -> None:
    """Print what a picture of ten runs of 100,000 steps each takes."""
    for number in range(10):
        (folder / f"run{number}").mkdir()
        with (folder / f"run{number}" / "metrics.jsonl").open("w") as file:
            file.writelines(
                json.dumps({"step": step, **METRICS, "loss": 9 / step**0.1, **SILENT}) + "\n"
                for step in range(1, 100_001)
            )
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "plot",
        *map(str, sorted(folder.iterdir())),
        "--out",
        str(folder / "x.svg"),
    ]
    print(
        f"plot of 10 runs with 100,000 points each: {cpu_seconds(command, runs):.2f} s CPU "
        f"(target 2)"
    )
