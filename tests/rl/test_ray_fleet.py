"""Runs whose completions come from actors of Ray; make test-ray installs it."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rl.fleet_runs import (
    build_command,
    get_losses,
    get_taken,
    is_running,
    read_pids,
    read_steps,
    slow_reward,
    train,
    train_and_kill,
    wait_for,
)

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
ROOT = Path(__file__).parents[2]
ON_POLICY = ("training.steps=6",)
RAY = ("rl.sync.transport=object_store", "rl.fleet.carrier=ray")


def build_python_path() -> str:
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return os.pathsep.join(paths)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="make test-ray installs it")
    monkeypatch.setenv("PYTHONPATH", build_python_path())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # where a Ray that titanrun starts keeps its token
    monkeypatch.setenv("HOME", str(tmp_path))
    # nobody listens there: a fleet without an address joins nothing
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")


@pytest.fixture(scope="module")
def started() -> Iterator[str]:
    """A Ray that others have started, by its address."""
    ray = pytest.importorskip("ray", reason="make test-ray installs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", build_python_path())
        patch.setenv("RAY_AUTH_MODE", "disabled")
        # the path of a Unix socket has at most 107 bytes
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            ray.init(
                address="local",
                num_cpus=2,
                resources={"generator": 2},
                include_dashboard=False,
                log_to_driver=False,
                _temp_dir=short,
            )
            yield ray.get_runtime_context().gcs_address
            ray.shutdown()


@pytest.fixture
def cluster(started: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    return started


def list_ray_processes() -> list[int]:
    """The processes of every Ray that titanrun has started, and of their actors' parents."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes()
        except OSError:
            continue
        if b"/tmp/titanrun-ray-" in words and is_running(int(file.parent.name)):
            found.append(int(file.parent.name))
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[float, float]]]:
    """Working folder of on-policy runs, and the losses of one that generates in the trainer."""
    folder = tmp_path_factory.mktemp("expected")
    reward = slow_reward(folder, 0.05)
    return folder, get_losses(train(folder / "here", *ON_POLICY, reward))


def build_on_policy_command(folder: Path, *overrides: str) -> list[str]:
    # a relative path begins where the trainer does, not where the cluster was started
    reward = slow_reward(folder.parent, 0.05).replace(f"{folder.parent}/", "")
    return build_command(folder, *ON_POLICY, reward, *RAY, "rl.fleet.processes=1", *overrides)


def test_on_policy_completions_of_an_actor_are_those_of_the_trainer_bit_for_bit(
    expected: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, before = expected[0] / "there", list_ray_processes()
    command = build_on_policy_command(folder)
    subprocess.run(command, check=True, capture_output=True, timeout=300, cwd=expected[0])
    assert get_losses(read_steps(folder)) == expected[1]
    (pid,) = read_pids(folder)
    assert not is_running(pid) and list_ray_processes() == before
    # neither files nor shared memory carried the weights, and Ray asked for its token
    assert not (folder / "weights").exists()
    assert (tmp_path / ".ray" / "auth_token").is_file()


def test_actors_share_the_work_and_a_killed_one_costs_only_time(
    tmp_path: Path, cluster: str
) -> None:
    import ray

    folder = tmp_path / "run"
    command = build_command(
        folder,
        *("training.steps=14", *RAY, "rl.fleet.processes=2", f"rl.fleet.address={cluster}"),
        "rl.fleet.resources=[generator=1]",
        "rl.schedule={target_offpolicy: 2, record: true}",
        slow_reward(tmp_path, 0.05),
    )

    def find_first(run: object) -> int:
        pids = read_pids(folder)
        assert len(pids) == 2 and ray.available_resources().get("generator", 0) == 0
        return pids[0]

    train_and_kill(folder, command, find_first, steps=5)
    steps = read_steps(folder)
    assert steps[-1]["rl/lost_requests"] >= 1 and steps[-1]["rl/restarts"] == 1
    for number in (0, 1):
        assert any(step[f"rl/tokens_per_second/{number}"] > 0 for step in steps[:5])
    taken = get_taken(folder)
    # none is missing, none came twice; the last ones are still on their way
    assert len(taken) == len(set(taken)) and set(range(len(taken) - 6)) <= set(taken)
    wait_for(lambda: not any(map(is_running, read_pids(folder))), 20)


def test_an_only_actor_that_is_killed_starts_again_where_it_was(
    expected: tuple[Path, Any], cluster: str
) -> None:
    folder = expected[0] / "killed"
    command = build_on_policy_command(folder, f"rl.fleet.address={cluster}")
    train_and_kill(folder, command, lambda run: read_pids(folder)[0], steps=2, cwd=expected[0])
    steps = read_steps(folder)
    assert get_losses(steps) == expected[1]
    assert steps[-1]["rl/lost_requests"] >= 1 and steps[-1]["rl/restarts"] == 1
    first, second = read_pids(folder)
    assert first != second
    log = (folder / "logs" / "rank-0.log").read_text()
    assert "generator 0 ended with" in log and "worker process has died" in log, log


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int, int]]:
    """Address of a Ray with two nodes on this machine, and the process ids of their raylets.

    Each has an object store of its own. Only the second has the resource `generator`.
    """
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("RAY_TMPDIR", short)
        head = {"num_cpus": 1, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            other = cluster.add_node(num_cpus=1, resources={"generator": 2})
            pids = [
                node.all_processes["raylet"][0].process.pid for node in (cluster.head_node, other)
            ]
            yield cluster.address, pids[0], pids[1]
        finally:
            cluster.shutdown()


def test_generators_of_another_node_get_its_weights_from_the_trainers_node(
    expected: tuple[Path, Any], two_nodes: tuple[str, int, int]
) -> None:
    address, _, raylet = two_nodes
    folder = expected[0] / "nodes"
    command = build_on_policy_command(
        folder, f"rl.fleet.address={address}", "rl.fleet.resources=[generator=1]"
    )
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=expected[0]
    )
    try:
        (pid,) = wait_for(lambda: (folder / "logs" / "rank-0.log").exists() and read_pids(folder))
        # the parent of an actor is the raylet of its node
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        output, _ = run.communicate(timeout=200)
    finally:
        run.kill()
    assert run.returncode == 0, output[-2000:]
    assert parent == raylet
    assert get_losses(read_steps(folder)) == expected[1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_its_ray_is_left_by_a_run_that_a_signal_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder, before = tmp_path / "run", list_ray_processes()
    command = build_command(folder, "training.steps=100000", *RAY, "rl.fleet.processes=1")
    run = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        wait_for(lambda: (folder / "metrics.jsonl").exists() and len(read_steps(folder)) >= 2)
        assert len(list_ray_processes()) > len(before)
        if number == signal.SIGTERM:
            # it reaches Ray's processes too, which the trainer still needs
            os.killpg(run.pid, number)
            assert run.wait(60) == 75 and list((folder / "checkpoint").glob("step-*"))
    finally:
        run.kill()
    run.wait()
    (pid,) = read_pids(folder)
    wait_for(lambda: not is_running(pid) and list_ray_processes() == before, 10)


def test_problems_of_the_cluster_and_of_an_actor_end_the_run_with_their_words(
    tmp_path: Path, cluster: str
) -> None:
    def fail(name: str, *overrides: str) -> Any:
        command = build_command(tmp_path / name, *RAY, "rl.fleet.processes=1", *overrides)
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    program = tmp_path / "reward.py"
    program.write_text("raise SystemExit('no such model')")
    reward = f"rl.rewards=[{{name: command, command: [python, {program}]}}]"
    found = fail("actor", f"rl.fleet.address={cluster}", reward)
    assert found.returncode == 3 and "Traceback" not in found.stderr, found.stderr
    assert "error[data]: generator 0: " in found.stderr and "failed too often" in found.stderr
    found = fail("cluster", "rl.fleet.address=127.0.0.1:9")
    assert found.returncode == 2 and "Traceback" not in found.stderr, found.stderr
    assert "nobody answers at 127.0.0.1:9" in found.stderr
