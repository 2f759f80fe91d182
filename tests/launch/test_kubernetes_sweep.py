"""Sweeps on Kubernetes with the real kubectl: a Job for each run, on the server of the tests."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.launch.fake_kubernetes import fake_kubernetes
from tests.launch.test_kubernetes_job import RECIPE, TITANRUN, Ready, steps_of, wait_until
from tests.worker.held_runs import build_hold, release

SWEEP = """
version: 1
recipe: recipe.yaml
folder: {folder}
overrides: [training.steps={steps}, launch.nnodes=1]
slots: {slots}
"""
GRID = "grid: {optimizer.lr: [1.0e-3, 2.0e-3]}\n"
SEARCH = """search:
  sampler: random
  count: 3
  values: {optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}}
"""

pytestmark = pytest.mark.kubernetes
Write = Callable[..., Path]


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Ready]:
    (tmp_path / "runs").mkdir()
    with fake_kubernetes(tmp_path / "cluster") as ready:
        yield ready


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a sweep file."""

    def write_sweep(values: str, *, steps: int = 3, slots: int = 1, more: str = "") -> Path:
        text = RECIPE.replace("VOLUME", str(tmp_path / "runs"))
        (tmp_path / "recipe.yaml").write_text(text.replace("  nnodes: 2\n", f"  nnodes: 2\n{more}"))
        file = tmp_path / "sweep.yaml"
        folder = tmp_path / "runs" / "sweep"
        file.write_text(SWEEP.format(folder=folder, steps=steps, slots=slots) + values)
        return file

    return write_sweep


def start(folder: Path, ready: Ready, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*TITANRUN, "sweep", "sweep.yaml", *words],
        cwd=folder,
        env=ready[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(folder: Path, ready: Ready, *words: str) -> tuple[int, str, str]:
    """Run a command to its end. Return its exit code, output and messages."""
    process = start(folder, ready, *words)
    out, said = process.communicate(timeout=500)
    return process.returncode, out, said


def load_rows(folder: Path, ready: Ready) -> list[dict[str, object]]:
    code, out, said = finish(folder, ready, "--table", "--format", "json")
    assert code == 0, said
    return [json.loads(line) for line in out.splitlines()]


def runs_of(folder: Path) -> list[Path]:
    return sorted(path.parent for path in (folder / "runs" / "sweep").glob("*/metrics.jsonl"))


def test_each_run_is_a_job_and_as_many_train_at_a_time_as_there_are_slots(
    tmp_path: Path, kubernetes: Ready, write: Write
) -> None:
    write(GRID)
    process = start(tmp_path, kubernetes, "--launch")
    most = 0
    while process.poll() is None:
        kubernetes[0].watch()
        most = max(most, len(kubernetes[0].pods))
        time.sleep(0.2)
    said = process.communicate()[1]
    assert process.returncode == 0 and said.count(": finished") == 2, said
    assert most == 1 and len(kubernetes[0].objects["jobs"]) == 2
    rows = load_rows(tmp_path, kubernetes)
    assert [row["state"] for row in rows] == ["finished"] * 2
    assert [row["step"] for row in rows] == [3, 3]
    rates = [yaml.safe_load((run / "resolved.yaml").read_text()) for run in runs_of(tmp_path)]
    assert [recipe["optimizer"]["lr"] for recipe in rates] == [1e-3, 2e-3]
    requests = len(kubernetes[0].requests)
    code, _, said = finish(tmp_path, kubernetes, "--launch")
    assert code == 0 and "nothing to do: 2 runs" in said, said
    assert len(kubernetes[0].requests) == requests


def test_a_signal_lets_the_pods_save_and_the_sweep_resumes(
    tmp_path: Path, kubernetes: Ready, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in build_hold(3).items():
        monkeypatch.setenv(name, value)

    def count_files(name: str) -> int:
        return sum((run / name).exists() for run in runs_of(tmp_path))

    write(GRID, steps=10, slots=2)
    process = start(tmp_path, kubernetes, "--launch")
    wait_until(lambda: count_files("held-0") == 2, kubernetes[0], "both wait after a step")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: count_files("asked-0") == 2, kubernetes[0], "both are asked to stop")
    for run in runs_of(tmp_path):
        release(run)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 75 and said.count("interrupted, resumes") == 2, said
    assert not kubernetes[0].objects["jobs"] and not kubernetes[0].pods
    for run in runs_of(tmp_path):
        status = json.loads((run / "status.json").read_text())
        assert (
            status["state"] == "preempted" and (run / f"checkpoint/step-{status['step']}").is_dir()
        )
    code, _, said = finish(tmp_path, kubernetes, "--launch")
    assert code == 0, said
    for run in runs_of(tmp_path):
        assert steps_of(run) == list(range(1, 11))
        assert len(json.loads((run / "run.json").read_text())["starts"]) == 2


def test_a_sweep_whose_process_is_lost_follows_the_jobs_that_went_on(
    tmp_path: Path, kubernetes: Ready, write: Write
) -> None:
    write(SEARCH, slots=2)
    cluster = kubernetes[0]
    cluster.is_full = True
    lost = start(tmp_path, kubernetes, "--launch")
    wait_until(lambda: len(cluster.objects["jobs"]) == 2, cluster, "both are submitted")
    # the machine of the sweep is gone, with the commands that follow the Jobs
    logs = tmp_path / "runs" / "sweep" / "logs"

    def count_logs(words: str) -> int:
        return sum(words in log.read_text() for log in logs.iterdir())

    wait_until(lambda: count_logs("nvidia.com") == 2, cluster, "both are followed")
    found = subprocess.run(["pgrep", "-P", str(lost.pid)], capture_output=True, check=True)
    for pid in (lost.pid, *map(int, found.stdout.split())):
        os.kill(pid, signal.SIGKILL)
    lost.communicate()
    before = set(cluster.objects["jobs"])
    again = start(tmp_path, kubernetes, "--launch")
    wait_until(lambda: count_logs("is followed") == 2, cluster, "both are followed again")
    cluster.start_waiting_pods()
    said = again.communicate(timeout=500)[1]
    assert again.returncode == 0, said
    assert before < set(cluster.objects["jobs"]) and len(cluster.objects["jobs"]) == 3
    rows = load_rows(tmp_path, kubernetes)
    assert sorted(int(str(row["trial"])) for row in rows) == [0, 1, 2]
    assert {row["state"] for row in rows} == {"finished"}


def test_a_queue_gets_all_jobs_at_once(tmp_path: Path, kubernetes: Ready, write: Write) -> None:
    write(GRID, more="  queue: team\n")
    kubernetes[0].is_full = True
    code, _, said = finish(tmp_path, kubernetes, "--launch")
    assert code == 0 and "2 jobs submitted" in said, said
    jobs = kubernetes[0].objects["jobs"].values()
    queues = [job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for job in jobs]
    assert queues == ["team"] * 2
    code, _, said = finish(tmp_path, kubernetes, "--launch")
    assert code == 0 and "0 jobs submitted" in said and said.count("is not over, skipped") == 2


def test_a_cluster_that_does_not_answer_fails_no_trial(
    tmp_path: Path, kubernetes: Ready, write: Write
) -> None:
    write(SEARCH)
    environment = {**kubernetes[1], "PATH": os.environ["PATH"]}
    code, _, said = finish(tmp_path, (kubernetes[0], environment), "--launch")
    assert code == 1 and "The connection to the server" in said, said
    code, _, said = finish(tmp_path, kubernetes, "--launch")
    assert code == 0, said
    assert [row["state"] for row in load_rows(tmp_path, kubernetes)] == ["finished"] * 3


def test_the_objects_of_a_sweep_are_those_that_kubernetes_knows(
    tmp_path: Path, kubernetes: Ready, write: Write
) -> None:
    import kubernetes_validate

    for values, count in ((GRID, 2), (SEARCH, 1)):
        write(values)
        code, out, said = finish(tmp_path, (kubernetes[0], os.environ.copy()), "--dry-run")
        assert code == 0, said
        objects = [item for item in yaml.safe_load_all(out) if item is not None]
        assert [item["kind"] for item in objects] == ["ConfigMap", "Job"] * count
        assert len({item["metadata"]["name"] for item in objects}) == count
        for item in objects:
            kubernetes_validate.validate(item, "1.37", strict=True)
    assert not (tmp_path / "runs" / "sweep").exists()
