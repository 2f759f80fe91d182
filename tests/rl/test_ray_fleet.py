"""Runs whose completions come from actors of Ray; make test-ray installs it."""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rl.fleet_runs import (
    LONG,
    RECORDING,
    build_command,
    check_replays,
    get_losses,
    get_taken,
    held_reward,
    is_running,
    read_pids,
    read_steps,
    restart_trainer,
    slow_reward,
    train,
    train_and_kill,
    wait_for,
    wait_for_held,
)
from tests.rl.watched_run import describe, watch_run
from tests.worker.held_runs import release

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
    return list_processes("/tmp/titanrun-ray-")


def list_owners(folder: Path) -> list[int]:
    """The owners of the actors of a run."""
    return list_processes(f"titanrun.worker.ray_owner\0{folder}/")


def list_ray_folders() -> list[Path]:
    """The folders of every Ray that titanrun has started."""
    return list(Path("/tmp").glob("titanrun-ray-*"))


def list_processes(words: str) -> list[int]:
    """The processes with these words in their command."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes()
        except OSError:
            continue
        if words.encode() in command and is_running(int(file.parent.name)):
            found.append(int(file.parent.name))
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[float, float]]]:
    """Working folder of on-policy runs, and the losses of one that generates in the trainer."""
    folder = tmp_path_factory.mktemp("expected")
    reward = slow_reward(folder, 0.05)
    return folder, get_losses(train(folder / "here", *ON_POLICY, reward))


def build_on_policy_command(folder: Path, reward: str, *overrides: str) -> list[str]:
    # a relative path begins where the trainer does, not where the cluster was started
    words = reward.replace(f"{folder.parent}/", "")
    return build_command(folder, *ON_POLICY, words, *RAY, "rl.fleet.processes=1", *overrides)


def test_on_policy_completions_of_an_actor_are_those_of_the_trainer_bit_for_bit(
    expected: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, before = expected[0] / "there", list_ray_processes()
    command = build_on_policy_command(folder, slow_reward(expected[0], 0.05))
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
        held_reward(folder, 5),
    )

    def find_first(run: object) -> int:
        pids = read_pids(folder)
        assert len(pids) == 2
        # Ray counts what is free now and then
        wait_for(lambda: ray.available_resources().get("generator", 0) == 0)
        return pids[0]

    train_and_kill(
        folder,
        command,
        find_first,
        generators=2,
        is_replaced=lambda: len(read_pids(folder)) == 3,
    )
    steps = read_steps(folder)
    assert steps[-1]["rl/lost_requests"] >= 1 and steps[-1]["rl/restarts"] == 1
    for number in (0, 1):
        assert any(step[f"rl/generator/{number}/tokens_per_second"] > 0 for step in steps)
    taken = get_taken(folder)
    # none is missing, none came twice; the last ones are still on their way
    assert len(taken) == len(set(taken)) and set(range(len(taken) - 6)) <= set(taken)
    wait_for(lambda: not any(map(is_running, read_pids(folder))))


def test_an_only_actor_that_is_killed_starts_again_where_it_was(
    expected: tuple[Path, Any], cluster: str
) -> None:
    folder = expected[0] / "killed"
    command = build_on_policy_command(folder, held_reward(folder, 2), f"rl.fleet.address={cluster}")
    train_and_kill(
        folder,
        command,
        lambda run: read_pids(folder)[0],
        is_replaced=lambda: len(read_pids(folder)) == 2,
        cwd=expected[0],
    )
    steps = read_steps(folder)
    assert get_losses(steps) == expected[1]
    assert steps[-1]["rl/lost_requests"] >= 1 and steps[-1]["rl/restarts"] == 1
    first, second = read_pids(folder)
    assert first != second
    log = (folder / "logs" / "rank-0.log").read_text()
    assert "generator 0 ended with" in log and "worker process has died" in log, log


def test_weights_of_a_trainer_that_has_ended_are_gone(cluster: str) -> None:
    import ray

    from titanrun.rl.fleet.ray_process import get_object

    class Trainer:
        def publish(self) -> list[Any]:
            return [ray.put("weights")]

    trainer = ray.remote(Trainer).options(num_cpus=0).remote()
    (reference,) = ray.get(trainer.publish.remote())
    assert get_object(reference) == "weights"
    ray.kill(trainer)

    def is_gone() -> bool:
        try:
            return get_object(reference) is None
        except KeyError:
            return True

    wait_for(is_gone)


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
        folder,
        held_reward(folder, 1),
        f"rl.fleet.address={address}",
        "rl.fleet.resources=[generator=1]",
    )
    run = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=expected[0]
    )
    try:
        wait_for_held(folder, run)
        (pid,) = read_pids(folder)
        # the parent of an actor is the raylet of its node
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        release(folder)
        output, _ = run.communicate(timeout=300)
    finally:
        run.kill()
    assert run.returncode == 0, output[-2000:]
    assert parent == raylet
    assert get_losses(read_steps(folder)) == expected[1]


def test_what_actors_have_generated_is_replayed_bit_for_bit(tmp_path: Path, cluster: str) -> None:
    address = f"rl.fleet.address={cluster}"
    train(tmp_path / "recorded", *LONG, *RAY, "rl.fleet.processes=2", address, RECORDING)
    check_replays(tmp_path / "recorded", tmp_path)


def test_an_actor_without_room_gets_no_groups(tmp_path: Path, cluster: str) -> None:
    """The cluster has room for two, and may grow: the run does not wait for the third."""
    overrides = ("rl.fleet.processes=3", "rl.fleet.resources=[generator=1]")
    address = f"rl.fleet.address={cluster}"
    steps = train(tmp_path / "run", "training.steps=3", *RAY, *overrides, address)
    assert len(steps) == 3 and len(read_pids(tmp_path / "run")) == 2
    assert "they wait until the cluster grows" in (tmp_path / "run/logs/rank-0.log").read_text()


@pytest.mark.parametrize("has_cluster", [False, True])
def test_a_restarted_trainer_finds_its_actors_again(
    tmp_path: Path, has_cluster: bool, request: pytest.FixtureRequest
) -> None:
    cluster = request.getfixturevalue("cluster") if has_cluster else None
    folder, before = tmp_path / "run", list_ray_processes()
    address = f"rl.fleet.address={cluster or 'null'}"
    restart_trainer(folder, *RAY, "rl.fleet.processes=2", address, held_reward(folder, 7))
    log, pids = (folder / "logs" / "rank-0.log").read_text(), read_pids(folder)
    assert len(pids) == 2
    for number in (0, 1):
        (first,) = re.findall(rf"generator {number} runs in process (\d+)", log)
        assert f"generator {number} goes on in process {first}" in log
    wait_for(lambda: not any(map(is_running, pids)))
    assert list_ray_processes() == before and not list_owners(folder)
    assert not list((folder / "fleet").glob("ray-owner*"))


@pytest.mark.parametrize("end", ["success", "error", "kill"])
def test_a_run_with_a_ray_of_its_own_leaves_nothing(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "run"
    steps = "training.steps=5" if end == "success" else "training.steps=100000"
    settings = {
        "success": ("launch.max_restarts=1", held_reward(folder, 2)),
        "error": (held_reward(folder, 2, then="broken"),),
        "kill": ("launch.max_restarts=1", held_reward(folder, 2)),
    }[end]
    with watch_run() as run:
        command = build_command(folder, steps, *RAY, "rl.fleet.processes=2", *settings)
        process = run.start(command)
        wait_for_held(folder, process)
        found = re.findall(r"/tmp/titanrun-ray-\w+", " ".join(map(describe, run.list_processes())))
        folders = set(map(Path, found))
        assert len(folders) == 1 and all(map(Path.is_dir, folders))
        if end == "kill":
            process.kill()
        release(folder)
        output, _ = process.communicate(timeout=300)
        assert (process.returncode == 0) == (end == "success"), output[-2000:]
        run.check_nothing_is_left()
        assert not any(map(Path.exists, folders))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_its_ray_is_left_by_a_run_that_a_signal_ends(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder, before, folders = tmp_path / "run", list_ray_processes(), set(list_ray_folders())
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
            assert run.wait(300) == 75 and list((folder / "checkpoint").glob("step-*"))
    finally:
        run.kill()
    run.wait()
    (pid,) = read_pids(folder)
    wait_for(lambda: not is_running(pid) and list_ray_processes() == before)
    wait_for(lambda: not list_owners(folder) and set(list_ray_folders()) <= folders)


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
