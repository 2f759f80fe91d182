"""What a run with a fleet leaves behind: nothing, whatever ends it."""

import os
import signal
from pathlib import Path

import pytest

from tests.rl.fleet_runs import (
    FLEET,
    broken_reward,
    build_command,
    held_reward,
    is_running,
    read_steps,
    slow_reward,
    wait_for,
    wait_for_held,
)
from tests.rl.http_machines import build_overrides, open_machine
from tests.rl.watched_run import WatchedRun, watch_run
from tests.worker.held_runs import release

pytestmark = pytest.mark.slow
ENDLESS = ("training.steps=100000", "rl.schedule.target_offpolicy=1")


def wait_for_steps(run: WatchedRun, folder: Path, steps: int = 3) -> None:
    """Wait until the run has trained, and look at its processes."""
    wait_for(lambda: (folder / "metrics.jsonl").exists() and len(read_steps(folder)) >= steps)
    assert len(run.list_processes()) >= 2


def test_a_success_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = build_command(
        folder, "training.steps=5", *FLEET, held_reward(folder, 3), "launch.max_restarts=1"
    )
    with watch_run() as run:
        process = run.start(command)
        wait_for_held(folder, process)
        wait_for_steps(run, folder)
        release(folder)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output[-2000:]
        run.check_nothing_is_left()


@pytest.mark.parametrize("end", ["trainer", "reward"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_an_error_leaves_nothing(tmp_path: Path, end: str, restarts: int) -> None:
    folder = tmp_path / "run"
    settings = {
        "trainer": ("rl.sync.max_logprob_diff=1e-30", slow_reward(tmp_path, 0.05)),
        "reward": (broken_reward(tmp_path),),
    }[end]
    command = build_command(
        folder, "training.steps=100", *FLEET, *settings, f"launch.max_restarts={restarts}"
    )
    with watch_run() as run:
        process = run.start(command)
        wait_for(lambda: len(run.list_processes()) >= 2)
        output, _ = process.communicate(timeout=300)
        assert process.returncode not in (0, 70), output[-2000:]
        assert ("failed too often" in output) == (end == "reward"), output[-2000:]
        run.check_nothing_is_left()


@pytest.mark.parametrize(
    "launch",
    [
        ("launch.max_restarts=0",),
        ("launch.max_restarts=1",),
        ("parallelism.data_parallel_shard_degree=2", "--nproc", "2"),
    ],
    ids=["trainer", "launcher_of_one", "launcher_of_two"],
)
def test_a_killed_supervisor_leaves_nothing(tmp_path: Path, launch: tuple[str, ...]) -> None:
    folder = tmp_path / "run"
    command = build_command(folder, *ENDLESS, *FLEET, slow_reward(tmp_path, 0.05), *launch)
    with watch_run() as run:
        process = run.start(command)
        wait_for_steps(run, folder)
        process.kill()
        process.wait()
        # the trainer of a launcher saves and stops
        run.check_nothing_is_left()


def test_a_launcher_that_is_killed_at_once_leaves_nothing(tmp_path: Path) -> None:
    command = build_command(tmp_path / "run", *ENDLESS, *FLEET, "launch.max_restarts=1")
    with watch_run() as run:
        process = run.start(command)
        # its ranks have not been imported yet
        wait_for(lambda: any(run.folder.iterdir()) and len(run.list_processes()) == 2)
        process.kill()
        process.wait()
        run.check_nothing_is_left()


@pytest.mark.parametrize("end", ["success", "error", "kill"])
def test_neither_side_of_a_connection_leaves_anything(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "run"
    reward = slow_reward(tmp_path, 0.05)
    steps = "training.steps=5" if end == "success" else "training.steps=100000"
    check = "rl.sync.max_logprob_diff=1e-30" if end == "error" else "launch.max_restarts=1"
    with watch_run() as run, open_machine(tmp_path, reward, environment=run.environment) as machine:
        command = build_command(folder, steps, check, reward, *build_overrides(machine.port))
        process = run.start(command)
        if end != "error":
            wait_for_steps(run, folder)
        if end == "kill":
            process.kill()
        process.communicate(timeout=300)
        assert (process.returncode == 0) == (end == "success")
        # what is left is the generator and its program, which wait for the next trainer
        assert machine.generator is not None
        parents = (machine.generator.pid, os.getpid())
        wait_for(
            lambda: all(get_parent(pid) in (None, *parents) for pid in run.list_processes()), 30
        )
        assert is_running(machine.generator.pid)
        number = signal.SIGKILL if end == "kill" else signal.SIGTERM
        assert machine.end(number) == (-number if end == "kill" else 0)
        run.check_nothing_is_left()


def get_parent(pid: int) -> int | None:
    """The parent of a process, None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
