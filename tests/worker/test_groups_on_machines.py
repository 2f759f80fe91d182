"""Replica groups on several machines: two commands on this one, over its own network address."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worker.conftest import RECIPE, write_tokens
from tests.worker.group_runs import (
    Start,
    check,
    digests,
    end,
    events,
    find_workers,
    losses,
    names,
    start_runs,
)
from tests.worker.held_runs import release, wait_for_hold
from titanrun.cli.train import prepare_run_directory, resolve_for_ranks
from titanrun.launch.host_address import find_own_address
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.recipe.rundir.run_lock import is_in_use

pytestmark = [pytest.mark.torchft]

STEPS = 14
LISTENS = "0A"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe of two groups that share three forward passes a step."""
    folder = tmp_path_factory.mktemp("recipe")
    text = RECIPE % write_tokens(folder / "tokens.npy")
    text = text.replace("global_batch_size: 4", "global_batch_size: 6")
    text = text.replace("steps: 10", f"steps: {STEPS}").replace("interval: 100", "interval: 5")
    (folder / "recipe.yaml").write_text(text + "launch: {nproc_per_node: 1, max_restarts: 5}\n")
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def start(recipe: Path) -> Iterator[Start]:
    with start_runs(recipe) as train:
        yield train


@pytest.fixture(scope="module")
def alone(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    folder = tmp_path_factory.mktemp("runs") / "alone"
    end(start(folder))
    return losses(folder)


class Lighthouse:
    """The lighthouse, as the page tells to start it."""

    def __init__(self) -> None:
        # no packet is sent: the address of the interface that leads out of this machine
        self.host = find_own_address("192.0.2.1", 1).address
        with socket.create_server((self.host, 0)) as free:
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = [self.host, str(self.port), "2", "60000", "1000"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "titanrun.worker.lighthouse", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def lighthouse() -> Iterator[Lighthouse]:
    server = Lighthouse()
    server.start()
    yield server
    server.kill()


@pytest.fixture
def start_group(start: Start, lighthouse: Lighthouse) -> Callable[..., Any]:
    """Starts the command of one machine."""

    def train(folder: Path, group: int, *overrides: str, hold: int | None = None) -> Any:
        return start(
            folder,
            "fault_tolerance.enable=true",
            "fault_tolerance.min_replica_size=2",
            f"fault_tolerance.replica_id={group}",
            f"fault_tolerance.lighthouse=http://{lighthouse.host}:{lighthouse.port}",
            *overrides,
            hold=hold,
        )

    return train


def find_listeners(pids: list[int]) -> set[str]:
    """The IPv4 addresses at which processes listen, as the kernel writes them."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(link.readlink()))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in sockets:
                found.add(fields[1].partition(":")[0])
    return found


def kill_machine(folder: Path, group: int, launcher: subprocess.Popen[str]) -> None:
    """End everything of one machine at once, as a loss of power does."""
    launcher.send_signal(signal.SIGSTOP)
    for worker in find_workers(folder, group):
        os.kill(worker, signal.SIGKILL)
    launcher.kill()
    launcher.communicate()


def test_two_machines_train_as_one_process_does_and_listen_on_one_interface(
    start_group: Callable[..., Any],
    lighthouse: Lighthouse,
    alone: dict[int, float],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    machines = [start_group(folder, group, hold=3) for group in range(2)]
    wait_for_hold(folder, machines[0], groups=[0, 1])
    workers = [*find_workers(folder, 0), *find_workers(folder, 1)]
    heard = find_listeners(workers)
    release(folder)
    for machine in machines:
        end(machine)
    check(folder, alone)
    own = socket.inet_aton(lighthouse.host)[::-1].hex().upper()
    assert heard == {own}
    assert len(digests(folder)) == 1
    assert {event["groups"] for event in events(folder)} == {2}
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert "nothing to do: step 14 of 14" in end(start_group(folder, 1))
    check(folder, alone)


@pytest.mark.parametrize("group", [0, 1])
def test_a_machine_that_is_lost_comes_back_by_the_same_command(
    group: int, start_group: Callable[..., Any], alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    machines = [start_group(folder, number, hold=4) for number in range(2)]
    wait_for_hold(folder, machines[0], groups=[0, 1])
    kill_machine(folder, group, machines[group])
    release(folder)
    machines[group] = start_group(folder, group)
    for machine in machines:
        end(machine)
    check(folder, alone)
    assert names(folder, group).count("joined") == 2
    assert len(digests(folder)) == 1


def test_a_signal_to_one_machine_stops_all_and_the_same_commands_resume(
    start_group: Callable[..., Any], alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    machines = [start_group(folder, group, hold=3) for group in range(2)]
    wait_for_hold(folder, machines[0], groups=[0, 1])
    machines[1].send_signal(signal.SIGTERM)
    wait_for_hold(folder, machines[1], groups=[1], word="asked")
    release(folder)
    for machine in machines:
        end(machine, 75)
    last = max(losses(folder))
    assert (folder / "checkpoint" / f"step-{last}").is_dir()
    for machine in [start_group(folder, group) for group in range(2)]:
        end(machine)
    check(folder, alone)


def test_a_lighthouse_that_comes_back_is_found_and_one_that_does_not_is_named(
    start_group: Callable[..., Any],
    lighthouse: Lighthouse,
    alone: dict[int, float],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    machines = [start_group(folder, group, hold=3) for group in range(2)]
    wait_for_hold(folder, machines[0], groups=[0, 1])
    lighthouse.kill()
    lighthouse.start()
    release(folder)
    for machine in machines:
        end(machine)
    check(folder, alone)
    lighthouse.kill()
    short = ("fault_tolerance.quorum_timeout_ms=8000", "fault_tolerance.join_timeout_ms=4000")
    lost = start_group(tmp_path / "lost", 0, *short, "launch.max_restarts=0")
    error = end(lost, 8)
    address = f"http://{lighthouse.host}:{lighthouse.port}"
    assert f"error[quorum]: no lighthouse of replica groups at {address}" in error


def test_each_machine_has_a_group_of_its_own_and_the_same_recipe(
    start_group: Callable[..., Any], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = start_group(folder, 0)
    deadline = time.monotonic() + 60
    while not find_workers(folder, 0):
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    assert "replica group 0 of" in end(start_group(folder, 0), 2)
    error = end(start_group(folder, 1, "optimizer.lr=0.5"), 2)
    assert "another recipe" in error and "the same overrides, but for replica_id" in error
    assert "is in use by process" in end(start(folder), 2)
    kill_machine(folder, 0, first)


def test_groups_that_open_the_run_before_any_trains_record_one_start(
    recipe: Path, tmp_path: Path
) -> None:
    options = Namespace(quiet=True)
    words = ["fault_tolerance.enable=true", f"dump_folder={tmp_path / 'run'}"]
    words.append("fault_tolerance.lighthouse=http://127.0.0.1:1")
    opened = []
    for group in (0, 1):
        said = [*words, f"fault_tolerance.replica_id={group}"]
        resolved = resolve_for_ranks(str(recipe), said, around={})
        opened.append(prepare_run_directory(resolved, said, options))
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [start["argv"][-1] for start in record["starts"]] == ["fault_tolerance.replica_id=0"]
    assert load_resolved(tmp_path / "run" / "resolved.yaml").fault_tolerance.replica_id == 0
    # the run is in use for as long as one of them trains
    for directory in opened:
        assert directory.lock is not None and is_in_use(directory.path)
        directory.lock.close()
    assert not is_in_use(tmp_path / "run")
