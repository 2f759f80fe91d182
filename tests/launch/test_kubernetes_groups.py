"""Replica groups on Kubernetes with the real kubectl: a Job for each, which loses its pod."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.fake_kubernetes import fake_kubernetes
from tests.launch.test_kubernetes_job import Ready, start, steps_of, wait_until
from tests.worker.conftest import RECIPE, write_tokens
from tests.worker.group_runs import check, find_workers, losses, names
from tests.worker.held_runs import build_hold, release, wait_for_hold, without_hold

STEPS = 14
LAUNCH = """
fault_tolerance: {enable: true, min_replica_size: 2, heartbeat_timeout_ms: 1000}
launch:
  name: kubernetes
  image: registry.example/titanrun:0.1
  volumes: [{claim: runs, path: VOLUME}]
dump_folder: VOLUME/run
"""

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ready]:
    """A cluster, and beside it the tiny recipe of two groups that share three forward passes.

    The groups wait after step 3.
    """
    for name, value in build_hold(3).items():
        monkeypatch.setenv(name, value)
    assert shutil.which("kubectl"), "these tests need kubectl: apt-get install kubernetes-client"
    (tmp_path / "runs").mkdir()
    text = RECIPE % write_tokens(tmp_path / "tokens.npy")
    text = text.replace("global_batch_size: 4", "global_batch_size: 6")
    text = text.replace("steps: 10", f"steps: {STEPS}").replace("interval: 100", "interval: 5")
    launch = LAUNCH.replace("VOLUME", str(tmp_path / "runs"))
    (tmp_path / "recipe.yaml").write_text(text + launch)
    with fake_kubernetes(tmp_path / "cluster") as ready:
        yield ready


def test_a_killed_group_gets_a_new_pod_and_no_sequence_is_lost(
    tmp_path: Path, kubernetes: Ready
) -> None:
    cluster, _ = kubernetes
    run = tmp_path / "runs" / "run"
    following = start(tmp_path, kubernetes)
    wait_for_hold(run, following, groups=[0, 1], watch=cluster.watch)
    first, second = cluster.objects["jobs"]
    (service,) = cluster.objects["services"]
    assert second == f"{first[:-1]}1" and [*cluster.objects["deployments"]] == [service]
    workers = find_workers(run, 1)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    release(run)
    said = following.communicate(timeout=500)[1]
    assert following.returncode == 0, said
    assert f"jobs {first} to {second} train {run} in the pods" in said
    assert f"job {first}: complete" in said and f"job {second}: complete" in said
    command = ["train", "recipe.yaml", "launch=local", "fault_tolerance.enable=false"]
    subprocess.run(
        [sys.executable, "-m", "titanrun", *command, "dump_folder=alone"],
        cwd=tmp_path,
        env=without_hold(),
        check=True,
        capture_output=True,
    )
    check(run, losses(tmp_path / "alone"))
    assert names(run, 1).count("joined") == 2
    assert [cluster.objects["jobs"][job]["status"]["failed"] for job in (first, second)] == [0, 1]
    # the lighthouse does not outlive the run
    assert not cluster.objects["deployments"] and not cluster.lighthouses


def test_a_deleted_pod_stops_all_groups_and_new_pods_go_on(
    tmp_path: Path, kubernetes: Ready
) -> None:
    cluster, environment = kubernetes
    run = tmp_path / "runs" / "run"
    following = start(tmp_path, kubernetes)
    wait_for_hold(run, following, groups=[0, 1], watch=cluster.watch)
    _, second = cluster.objects["jobs"]
    victim = next(name for name in cluster.pods if name.startswith(f"{second}-"))
    kubectl = ["kubectl", "delete", "pod", victim, "--wait=false"]
    subprocess.run(kubectl, env=environment, check=True, capture_output=True)
    wait_for_hold(run, following, groups=[1], word="asked", watch=cluster.watch)
    release(run)
    wait_until(lambda: len(cluster.objects["pods"]) == 4, cluster, "both pods are replaced")
    said = following.communicate(timeout=500)[1]
    assert following.returncode == 0, said
    assert steps_of(run) == list(range(1, STEPS + 1))
    assert [job["status"]["failed"] for job in cluster.objects["jobs"].values()] == [0, 0]
