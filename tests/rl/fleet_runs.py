"""Runs whose completions come from processes of their own, for tests of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.rl.parts import TEXT
from titanrun.config.trust import TRUST_FLAG
from titanrun.rl.weight_sync.shared_memory_blocks import get_shared_memory_folder

FLEET = ("rl.sync.transport=shared_memory", "rl.fleet.processes=1")
# an answer takes its time: what trains next to it does not wait
SLOW_REWARD = """
import json, sys, time
for line in sys.stdin:
    answer = json.loads(line)["answer"]
    time.sleep(float(sys.argv[1]))
    print(json.dumps({"reward": sum(each in "abcdef" for each in answer)}), flush=True)
"""


def build_command(folder: Path, *overrides: str) -> list[str]:
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(TEXT)
    return [
        *(sys.executable, "-m", "titanrun", "train", str(recipe), TRUST_FLAG),
        *(f"dump_folder={folder}", *overrides),
    ]


def train(folder: Path, *overrides: str) -> list[dict[str, float]]:
    subprocess.run(build_command(folder, *overrides), check=True, capture_output=True, timeout=300)
    return read_steps(folder)


def read_steps(folder: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "loss" in line]


def get_losses(steps: list[dict[str, float]]) -> list[tuple[float, float]]:
    return [(step["loss"], step["grad_norm"]) for step in steps]


def slow_reward(folder: Path, seconds: float) -> str:
    program = folder / "reward.py"
    program.write_text(SLOW_REWARD)
    return f"rl.rewards=[{{name: command, command: [{sys.executable}, {program}, '{seconds}']}}]"


def wait_for(found: Any, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (value := found()) and time.monotonic() < end:
        time.sleep(0.05)
    assert value
    return value


def read_pids(folder: Path) -> list[int]:
    """The processes that a run has started, the newest last."""
    log = (folder / "logs" / "rank-0.log").read_text()
    return [int(pid) for pid in re.findall(r"generator \d runs in process (\d+)", log)]


def list_blocks(pid: int) -> list[Path]:
    """Shared memory that a trainer has created."""
    return list(get_shared_memory_folder().glob(f"titanrun-weights-{pid}-*"))


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


def read_takes(folder: Path) -> list[dict[str, Any]]:
    """What a record says about the groups of each step."""
    lines = map(json.loads, (folder / "schedule.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "take"]


def get_taken(folder: Path) -> list[int]:
    """The groups that were trained on, in their order."""
    return [group["number"] for line in read_takes(folder) for group in line["groups"]]


def train_and_kill(
    folder: Path,
    command: list[str],
    find_victim: Callable[["subprocess.Popen[str]"], int],
    *,
    steps: int,
    cwd: Path | None = None,
) -> None:
    """Run a command, kill a process of its run after some steps, and wait for its end with 0."""
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd
    )
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists() and len(read_steps(folder)) >= steps)
        os.kill(find_victim(run), signal.SIGKILL)
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 0, output[-2000:]
