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
from tests.worker.held_runs import release
from titanrun.config.trust import TRUST_FLAG
from titanrun.rl.weight_sync.shared_memory_blocks import get_shared_memory_folder

FLEET = ("rl.sync.transport=shared_memory", "rl.fleet.processes=1")
# completions that are long enough for new weights to come in between
LONG = ("training.steps=4", "training.seq_len=64", "rl.sampling.max_new_tokens=40")
RECORDING = "rl.schedule={target_offpolicy: 2, record: true}"
# an answer takes its time: what trains next to it does not wait
SLOW_REWARD = """
import json, sys, time
for line in sys.stdin:
    answer = json.loads(line)["answer"]
    time.sleep(float(sys.argv[1]))
    print(json.dumps({"reward": sum(each in "abcdef" for each in answer)}), flush=True)
"""

# once so many steps are logged, each answer waits until the run is released. Then it comes, or none
HELD_REWARD = """
import json, os, pathlib, sys, time
run, steps, is_broken = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "broken"
metrics, released = run / "metrics.jsonl", run / "released"
for line in sys.stdin:
    if steps and metrics.exists():
        steps = steps if metrics.read_text().count('"loss"') < steps else 0
    if not steps and not released.exists():
        (run / f"held-{os.getppid()}").touch()
    while not steps and not released.exists():
        time.sleep(0.05)
    if not steps and is_broken:
        raise SystemExit("no such model")
    answer = json.loads(line)["answer"]
    print(json.dumps({"reward": sum(each in "abcdef" for each in answer)}), flush=True)
"""

# answers a few times, then never again
BROKEN_REWARD = """
import json, pathlib, sys
counts = pathlib.Path(sys.argv[1])
for line in sys.stdin:
    counts.write_text(counts.read_text() + "." if counts.exists() else ".")
    if len(counts.read_text()) > 30:
        raise SystemExit("no such model")
    print(json.dumps({"reward": len(line)}), flush=True)
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


def broken_reward(folder: Path) -> str:
    program = folder / "broken.py"
    program.write_text(BROKEN_REWARD)
    return f"rl.rewards=[{{name: command, command: [{sys.executable}, {program}, {folder}/calls]}}]"


def held_reward(run: Path, steps: int, then: str = "answers") -> str:
    """Rewards that wait once so many steps of the run are logged, until `release`.

    So a generator is in the middle of its work, and its trainer trains on nothing that is not there
    yet, however fast each of them is. A run that was released is `broken`, or the reward `answers`.
    """
    program = run.parent / "held.py"
    program.write_text(HELD_REWARD)
    words = f"{sys.executable}, {program}, {run}, '{steps}', {then}"
    return f"rl.rewards=[{{name: command, command: [{words}], timeout_seconds: 600}}]"


def wait_for_held(folder: Path, run: "subprocess.Popen[str]", count: int = 1) -> None:
    """Wait until the rewards of so many generators wait. Fail if the run ends before."""

    def is_held() -> bool:
        if run.poll() is not None:
            raise AssertionError(run.communicate())
        return len(list(folder.glob("held-*"))) >= count

    wait_for(is_held)


def wait_for(found: Any, seconds: float = 300) -> Any:
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
    generators: int = 1,
    is_replaced: Callable[[], bool] = lambda: True,
    cwd: Path | None = None,
) -> None:
    """Run a command, kill a process of its run in the middle of its work, and wait for its end.

    The rewards of the run, `held_reward`, wait in all its generators. They are released when
    another process is in the place of the killed one.
    """
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd
    )
    try:
        wait_for_held(folder, run, generators)
        os.kill(find_victim(run), signal.SIGKILL)
        wait_for(is_replaced)
        release(folder)
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 0, output[-2000:]


def restart_trainer(
    folder: Path, *overrides: str, is_noticed: Callable[[], bool] = lambda: True
) -> int:
    """Kill the trainer of a run after step 7 and its checkpoint at step 5, and start it again.

    Its rewards are `held_reward` of step 7. It goes on with step 6, counts what was under way
    for the killed one, and trains on nothing that the lost weights have generated: all completions
    follow from the weights of its own steps. `is_noticed` tells whether its generators know of its
    end. Return the process id of the killed one.
    """
    command = build_command(
        folder,
        *("training.steps=10", "launch.max_restarts=1", *overrides),
        RECORDING,
        "checkpoint={enable: true, interval: 5}",
    )
    killed = []

    def find_trainer(run: "subprocess.Popen[str]") -> int:
        killed.append(json.loads((folder / "status.json").read_text())["pid"])
        assert killed != [run.pid]
        wait_for((folder / "checkpoint" / "step-5").is_dir)
        return int(killed[0])

    # a group that is done before is sent to the killed one, and nobody counts it
    train_and_kill(
        folder,
        command,
        find_trainer,
        is_replaced=lambda: not is_running(killed[0]) and is_noticed(),
    )
    steps = [int(step["step"]) for step in read_steps(folder)]
    first = steps.index(6, steps.index(6) + 1)
    assert steps[first:] == [6, 7, 8, 9, 10]
    assert read_steps(folder)[first]["rl/dropped_future"] >= 1
    losses = get_losses(read_steps(folder))
    expected = [*losses[: steps.index(6)], *losses[first:]]
    assert replay(folder, folder.parent / "replayed", "schedule", "training.steps=10") == expected
    return int(killed[0])


def read_generated(folder: Path) -> list[dict[str, Any]]:
    """What a record says about the batches of its generators."""
    lines = map(json.loads, (folder / "schedule.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == "generate"]


def replay(recorded: Path, folder: Path, level: str, *overrides: str) -> list[tuple[float, float]]:
    """Train on the record of a run with these overrides, and return the losses."""
    schedule = f"{{target_offpolicy: 2, replay: {recorded}, replay_level: {level}}}"
    return get_losses(train(folder, *overrides, f"rl.schedule={schedule}"))


def check_replays(recorded: Path, folder: Path) -> None:
    """Replay a record of `LONG` steps and two generators at both levels, bit for bit."""
    losses, batches = get_losses(read_steps(recorded)), read_generated(recorded)
    assert len(losses) == 4 and {batch["generator"] for batch in batches} == {0, 1}
    for level in ("completions", "schedule"):
        assert replay(recorded, folder / level, level, *LONG) == losses
