"""Runs on Kubernetes with the real kubectl: two pods train, are deleted, replaced and go on.

The API server and the Job controller are tests/launch/fake_kubernetes.py. What Kubernetes itself
would say of the objects is asked of its schemas (kubernetes-validate) and of its Python client.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.launch.fake_kubernetes import Cluster, Handler, fake_kubernetes
from tests.worker.held_runs import build_hold, release, wait_for_hold, without_hold
from titanrun.components.metrics.spec.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "kubernetes"
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 1, dim: 64, n_heads: 4}}
training: {{global_batch_size: 4, steps: 20, seq_len: 64}}
metrics: {{log_freq: 1}}
checkpoint: {{enable: true, interval: 1000}}
validation: {{enable: false}}
launch:
  name: kubernetes
  image: registry.example/titanrun:0.1
  nnodes: 2
  volumes: [{{claim: runs, path: VOLUME}}]
dump_folder: VOLUME/run
"""
TITANRUN = [sys.executable, "-m", "titanrun"]
Ready = tuple[Cluster, dict[str, str]]

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Ready]:
    assert shutil.which("kubectl"), "these tests need kubectl: apt-get install kubernetes-client"
    (tmp_path / "runs").mkdir()
    text = RECIPE.replace("VOLUME", str(tmp_path / "runs"))
    (tmp_path / "recipe.yaml").write_text(text)
    with fake_kubernetes(tmp_path / "cluster") as ready:
        yield ready


def steps_of(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    return [line["step"] for line in read_metrics(file)] if file.exists() else []


def wait_until(is_so: Callable[[], bool], cluster: Cluster, what: str) -> None:
    for _ in range(1500):
        cluster.watch()
        if is_so():
            return
        time.sleep(0.1)
    logs = {log.name: log.read_text()[-2000:] for log in cluster.folder.glob("*.log")}
    raise AssertionError(f"never: {what}: {logs}")


def start(folder: Path, ready: Ready, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*TITANRUN, "launch", "recipe.yaml", *words],
        cwd=folder,
        env=ready[1],
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_deleted_pod_saves_and_the_run_goes_on_in_new_pods(
    tmp_path: Path, kubernetes: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, environment = kubernetes
    for name, value in build_hold(3).items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "runs" / "run"
    following = start(tmp_path, kubernetes)
    wait_for_hold(run, following, watch=cluster.watch)
    (job,) = cluster.objects["jobs"]
    victim = next(name for name in cluster.pods if name.startswith(f"{job}-1-"))
    kubectl = ["kubectl", "delete", "pod", victim, "--wait=false"]
    subprocess.run(kubectl, env=environment, check=True, capture_output=True)
    # the first rank waits, so the second one is in a step
    log = run / "logs" / "rank-1.log"
    told = "SIGTERM: stopping after this step"
    wait_until(lambda: told in log.read_text(), cluster, "the pod is told")
    release(run)
    # both pods heard of it, although only one was told
    wait_until(lambda: len(cluster.objects["pods"]) == 4, cluster, "both pods are replaced")
    said = following.communicate(timeout=500)[1]
    assert following.returncode == 0, said
    assert "resuming after step" in said and f"job {job} trains" in said
    assert steps_of(run) == list(range(1, 21))
    assert cluster.objects["jobs"][job]["status"]["failed"] == 0
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2
    command = ["train", "recipe.yaml", "launch=local", "--nproc", "2", "dump_folder=alone"]
    subprocess.run(
        [*TITANRUN, *command], cwd=tmp_path, env=without_hold(), check=True, capture_output=True
    )
    lines, alone = (
        [(line["step"], line["loss"]) for line in read_metrics(folder / "metrics.jsonl")]
        for folder in (run, tmp_path / "alone")
    )
    assert lines == alone
    record = json.loads((tmp_path / "launch" / job / "job.json").read_text())
    assert record["name"] == job and record["namespace"] == "default" and record["uid"]
    # submitted again, the Job that is over makes room, and finds its run finished
    again = start(tmp_path, kubernetes)
    said = again.communicate(timeout=300)[1]
    assert again.returncode == 0 and "nothing to do: step 20 of 20" in said, said
    assert any(request.startswith("DELETE /apis/batch/v1") for request in cluster.requests)


def test_a_fault_of_the_recipe_fails_the_job_once_and_says_why(
    tmp_path: Path, kubernetes: Ready
) -> None:
    cluster, _ = kubernetes
    words = ("launch.nnodes=1", "training.dataset={name: text, path: /nowhere.txt}")
    following = start(tmp_path, kubernetes, *words)
    said = following.communicate(timeout=300)[1]
    assert following.returncode in (2, 3), said
    assert f"failed with exit code {following.returncode}" in said and "/nowhere.txt" in said
    assert len(cluster.objects["pods"]) == 1


def test_a_job_that_is_not_over_is_not_submitted_twice_and_says_what_it_waits_for(
    tmp_path: Path, kubernetes: Ready
) -> None:
    cluster, environment = kubernetes
    cluster.is_full = True
    first = start(tmp_path, kubernetes, "--no-follow")
    assert first.wait(timeout=300) == 0, first.communicate()[1]
    first.communicate()
    second = start(tmp_path, kubernetes)
    said = second.communicate(timeout=300)[1]
    (job,) = cluster.objects["jobs"]
    assert second.returncode == 2 and f"job '{job}' is already training this run" in said
    command = ["kubectl", "delete", "job", job]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    following = start(tmp_path, kubernetes)
    assert following.stderr is not None
    for line in following.stderr:
        if "insufficient nvidia.com/gpu" in line:
            break
    else:
        raise AssertionError("never told what the pods wait for")
    following.terminate()
    following.communicate()


@pytest.mark.parametrize("name", sorted(file.stem for file in GOLDEN.glob("*.yaml")))
def test_schemas_of_kubernetes_know_every_key(name: str) -> None:
    import kubernetes_validate

    objects = [*yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text())]
    for minor in range(31, 38):
        for item in objects:
            kubernetes_validate.validate(item, f"1.{minor}", strict=True)
    objects[-1]["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects[-1], "1.37", strict=True)


@pytest.mark.parametrize("name", sorted(file.stem for file in GOLDEN.glob("*.yaml")))
def test_the_typed_client_of_kubernetes_takes_the_objects(name: str, tmp_path: Path) -> None:
    import threading
    from http.server import ThreadingHTTPServer

    from kubernetes import client, utils

    taken = []

    class Echo(Handler):
        def do_POST(self) -> None:
            taken.append(self.read_body())
            self.answer(taken[-1], 201)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        where = client.Configuration(host=f"http://127.0.0.1:{server.server_port}")
        api = client.ApiClient(where)
        objects = [*yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text())]
        for item in objects:
            utils.create_from_dict(api, item, namespace="default")
        # what the client's types know is what the server gets
        assert taken == objects
    finally:
        server.shutdown()
        server.server_close()


def test_a_missing_cluster_is_said_once(tmp_path: Path) -> None:
    assert shutil.which("kubectl"), "these tests need kubectl: apt-get install kubernetes-client"
    text = RECIPE.replace("VOLUME", str(tmp_path / "runs"))
    (tmp_path / "recipe.yaml").write_text(text)
    nowhere = {**os.environ, "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    for words, said in (
        ((), "The connection to the server localhost:8080 was refused"),
        (("launch.context=team",), "context was not found for specified context: team"),
    ):
        done = start(tmp_path, (Cluster(tmp_path, port=0), nowhere), *words)
        _, error = done.communicate(timeout=120)
        assert done.returncode == 2, error
        assert error.count("refused") + error.count("context was not found") == 1, error
        assert said in error and "kubectl config get-contexts" in error
