"""A Kubernetes API server for the real kubectl, with the Job controller's part: pods are processes.

It knows ConfigMaps, Services, Deployments, Jobs and Pods of one namespace, as far as kubectl asks
for them. A Deployment is the lighthouse of replica groups: a process that is started again. A Job's
pods run the command of their container here; what Kubernetes would do is done to it: `$(...)` is
replaced, the mounted recipe is a file, and the host name of pod 0 is this machine.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

from tests.launch.reserved_port import reserve_port

NAMESPACE = "default"
GROUPS = {
    "configmaps": "api/v1",
    "services": "api/v1",
    "pods": "api/v1",
    "jobs": "apis/batch/v1",
    "deployments": "apis/apps/v1",
}
KINDS = {
    "configmaps": "ConfigMap",
    "services": "Service",
    "pods": "Pod",
    "jobs": "Job",
    "deployments": "Deployment",
}
INDEX = "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]
# validation is the server's, which this one does not do
KUBECTL = """#!/bin/bash
more=()
for word in "$@"; do
    if [ "$word" = apply ]; then more=(--validate=false); fi
done
exec {kubectl} --server {address} "$@" "${{more[@]}}"
"""


def tell_time(minute: int) -> str:
    """A time in the order of the minutes, as Kubernetes writes it."""
    return f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z"


@dataclass
class PodProcess:
    """A pod and the process that is its container."""

    data: Object
    process: "subprocess.Popen[bytes]"
    log: Path


@dataclass
class Cluster:
    """What the server stores, and the pods that run."""

    folder: Path
    port: int
    objects: dict[str, dict[str, Object]] = field(
        default_factory=lambda: {name: {} for name in GROUPS}
    )
    pods: dict[str, PodProcess] = field(default_factory=dict)
    lighthouses: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    made: int = 0
    is_full: bool = False
    """Whether pods wait for nodes."""

    def create(self, plural: str, data: Object) -> Object:
        """Store an object; a Job gets its pods."""
        with self.lock:
            name = data["metadata"]["name"]
            self.made += 1
            data["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{self.made}"}
            data["metadata"]["creationTimestamp"] = tell_time(self.made)
            self.objects[plural][name] = data
            if plural == "deployments":
                self.start_lighthouse(name)
            if plural == "jobs":
                data["status"] = {"failed": 0, "succeeded": 0, "active": 0}
                for index in range(data["spec"]["completions"]):
                    self.add_pod(data, index)
            return data

    def start_lighthouse(self, name: str) -> None:
        """Start the container of a Deployment, at this machine's address and port."""
        spec = self.objects["deployments"][name]["spec"]["template"]["spec"]
        program, *words = spec["containers"][0]["command"]
        assert program == "python"
        places = {"0.0.0.0": "127.0.0.1", "29510": str(self.port)}
        words = [places.get(word, word) for word in words]
        with (self.folder / f"{name}.log").open("ab") as out:
            self.lighthouses[name] = subprocess.Popen(
                [sys.executable, *words], stdout=out, stderr=out, start_new_session=True
            )

    def add_pod(self, job: Object, index: int) -> None:
        """Start the pod of an index."""
        self.made += 1
        template = job["spec"]["template"]
        name = f"{job['metadata']['name']}-{index}-{self.made:05}"
        labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
        data = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": f"uid-{self.made}",
                "creationTimestamp": tell_time(self.made),
                "labels": {**template["metadata"]["labels"], **labels},
                "annotations": {INDEX: str(index)},
            },
            "spec": template["spec"],
            "status": {"phase": "Running", "containerStatuses": []},
        }
        self.objects["pods"][name] = data
        if self.is_full:
            message = "0/3 nodes are available: insufficient nvidia.com/gpu."
            waits = {"type": "PodScheduled", "status": "False", "message": message}
            data["status"] = {"phase": "Pending", "conditions": [waits]}
            return
        self.start_pod(name, job, index)

    def start_pod(self, name: str, job: Object, index: int) -> None:
        """Start the container of a pod."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.build_command(job, index),
                cwd=self.folder,
                stdout=out,
                stderr=out,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        data = self.objects["pods"][name]
        data["status"] = {"phase": "Running", "containerStatuses": []}
        self.pods[name] = PodProcess(data, process, log)

    def start_waiting_pods(self) -> None:
        """Give nodes to the pods that wait for them."""
        with self.lock:
            self.is_full = False
            for name, pod in self.objects["pods"].items():
                if pod["status"]["phase"] == "Pending":
                    job = self.objects["jobs"][name.rsplit("-", 2)[0]]
                    self.start_pod(name, job, int(pod["metadata"]["annotations"][INDEX]))

    def build_command(self, job: Object, index: int) -> list[str]:
        """What the container runs, in a process of this machine."""
        name = job["metadata"]["name"]
        spec = job["spec"]["template"]["spec"]
        recipe = self.folder / "etc" / name
        recipe.mkdir(parents=True, exist_ok=True)
        mounted = next(item for item in spec["volumes"] if "configMap" in item)
        text = self.objects["configmaps"][mounted["configMap"]["name"]]["data"]["resolved.yaml"]
        (recipe / "resolved.yaml").write_text(text)
        words = spec["containers"][0]["command"]
        assert words[0] == "titanrun"
        listed = {item["name"] for item in spec["containers"][0]["env"]}
        assert listed == {"JOB_COMPLETION_INDEX"}
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in words]
        words = [word.replace("$$", "$").replace("/etc/titanrun", str(recipe)) for word in words]
        host = f"{name}-0.{spec.get('subdomain')}:29500"
        words = [word.replace(host, f"127.0.0.1:{self.port}") for word in words]
        # a Service of the namespace
        words = [
            re.sub(r"http://[a-z0-9-]+:29510", f"http://127.0.0.1:{self.port}", word)
            for word in words
        ]
        return [sys.executable, "-m", *words]

    def watch(self) -> None:
        """Do what the Job controller does for pods that have ended."""
        with self.lock:
            for name, pod in list(self.pods.items()):
                code = pod.process.poll()
                if code is None:
                    continue
                code = 128 - code if code < 0 else code
                del self.pods[name]
                ended = {"exitCode": code, "finishedAt": tell_time(self.made)}
                state = {"name": "titanrun", "state": {"terminated": ended}}
                phase = "Succeeded" if code == 0 else "Failed"
                pod.data["status"] = {"phase": phase, "containerStatuses": [state]}
                job = self.objects["jobs"].get(name.rsplit("-", 2)[0])
                if job is None:
                    # its Job was deleted while it saved
                    self.objects["pods"].pop(name, None)
                elif "conditions" not in job["status"]:
                    self.judge(job, pod.data, code)
            for name, process in list(self.lighthouses.items()):
                if process.poll() is not None:
                    self.start_lighthouse(name)
            for job in self.objects["jobs"].values():
                active = [name for name in self.pods if name.startswith(job["metadata"]["name"])]
                job["status"]["active"] = len(active)

    def judge(self, job: Object, pod: Object, code: int) -> None:
        """Apply podFailurePolicy and backoffLimit to the end of a pod."""
        status, index = job["status"], int(pod["metadata"]["annotations"][INDEX])
        if code == 0:
            status["succeeded"] += 1
            if status["succeeded"] == job["spec"]["completions"]:
                status["conditions"] = [{"type": "Complete", "status": "True"}]
            return
        rules = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
        action = next(
            (rule["action"] for rule in rules if code in rule["onExitCodes"]["values"]), "Count"
        )
        status["failed"] += action == "Count"
        message = (
            f"Container titanrun for pod {pod['metadata']['name']} failed with exit code {code}"
        )
        if action == "FailJob" or status["failed"] > job["spec"]["backoffLimit"]:
            end = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}
            status["conditions"] = [{**end, "message": message}]
            self.stop_pods(job["metadata"]["name"])
            return
        self.add_pod(job, index)

    def stop_pods(self, job: str) -> None:
        """Send SIGTERM to the pods of a Job."""
        for name, pod in self.pods.items():
            if name.startswith(job):
                pod.process.terminate()

    def delete(self, plural: str, name: str) -> Object:
        """Remove an object; pods get SIGTERM and stay until they have ended."""
        with self.lock:
            data = self.objects[plural][name]
            if plural == "pods":
                self.pods[name].process.send_signal(signal.SIGTERM)
                return data
            del self.objects[plural][name]
            if plural == "deployments":
                process = self.lighthouses.pop(name)
                process.kill()
                process.wait()
            if plural == "jobs":
                self.stop_pods(name)
                for key in [key for key in self.objects["pods"] if key.startswith(name)]:
                    if key not in self.pods:
                        del self.objects["pods"][key]
            return data


class Handler(BaseHTTPRequestHandler):
    """One request of kubectl."""

    cluster: Cluster

    def log_message(self, *words: object) -> None:
        pass

    def answer(self, data: object, code: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer_missing(self, name: str) -> None:
        said = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
        self.answer({**said, "code": 404, "message": f"{name} not found"}, 404)

    def place(self) -> tuple[str, str, str] | None:
        """Plural, name and sub-resource of the path, or None for what is not an object."""
        found = re.fullmatch(
            rf"/(api/v1|apis/(?:batch|apps)/v1)/namespaces/{NAMESPACE}/(\w+)(?:/([\w.-]+))?(?:/(\w+))?",
            urlparse(self.path).path,
        )
        if found is None or GROUPS.get(found[2]) != found[1]:
            return None
        return found[2], found[3] or "", found[4] or ""

    def do_GET(self) -> None:
        self.cluster.requests.append(f"GET {self.path}")
        self.cluster.watch()
        place = self.place()
        if place is None:
            self.answer_discovery(urlparse(self.path).path)
            return
        plural, name, below = place
        if below == "log":
            self.answer_log(name)
        elif name:
            data = self.cluster.objects[plural].get(name)
            self.answer(data) if data is not None else self.answer_missing(name)
        else:
            query = parse_qs(urlparse(self.path).query).get("labelSelector", [""])[0]
            key, _, value = query.partition("=")
            items = [
                item
                for item in self.cluster.objects[plural].values()
                if not key or item["metadata"]["labels"].get(key) == value
            ]
            self.answer({"kind": f"{KINDS[plural]}List", "apiVersion": "v1", "items": items})

    def answer_discovery(self, path: str) -> None:
        if path == "/api":
            self.answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            groups = []
            for name in ("batch", "apps"):
                version = {"groupVersion": f"{name}/v1", "version": "v1"}
                groups.append({"name": name, "versions": [version], "preferredVersion": version})
            self.answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif path in ("/api/v1", "/apis/batch/v1", "/apis/apps/v1"):
            verbs = ["create", "delete", "get", "list", "patch"]
            listed = [
                {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind}
                for plural, kind in KINDS.items()
                if path == f"/{GROUPS[plural]}"
            ]
            resources = [{**item, "verbs": verbs} for item in listed]
            version = path.removeprefix("/api/").removeprefix("/apis/")
            data = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
            self.answer(data)
        elif path == "/version":
            self.answer({"major": "1", "minor": "32", "gitVersion": "v1.32.0"})
        else:
            self.answer_missing(path)

    def answer_log(self, name: str) -> None:
        pod = self.cluster.pods.get(name)
        log = self.cluster.folder / f"{name}.log"
        self.send_response(200)
        self.end_headers()
        with log.open("rb") as file:
            while True:
                has_ended = pod is None or pod.process.poll() is not None
                self.wfile.write(file.read())
                self.wfile.flush()
                if has_ended:
                    return
                time.sleep(0.1)

    def read_body(self) -> Object:
        data: Object = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return data

    def do_POST(self) -> None:
        self.cluster.requests.append(f"POST {self.path}")
        place = self.place()
        assert place is not None
        self.answer(self.cluster.create(place[0], self.read_body()), 201)

    def do_PATCH(self) -> None:
        self.cluster.requests.append(f"PATCH {self.path}")
        place = self.place()
        assert place is not None
        data, changed = self.cluster.objects[place[0]][place[1]], self.read_body()
        data |= {key: value for key, value in changed.items() if key == "data"}
        self.answer(data)

    def do_DELETE(self) -> None:
        self.cluster.requests.append(f"DELETE {self.path}")
        place = self.place()
        assert place is not None
        self.read_body()
        self.answer(self.cluster.delete(place[0], place[1]))


@contextmanager
def fake_kubernetes(folder: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """A cluster within the block, and the environment in which kubectl finds it."""
    folder.mkdir(parents=True)
    with reserve_port() as port:
        cluster = Cluster(folder, port)
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("OwnHandler", (Handler,), {"cluster": cluster})
        )
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        programs = folder / "bin"
        programs.mkdir()
        kubectl = programs / "kubectl"
        address = f"http://127.0.0.1:{server.server_port}"
        kubectl.write_text(
            KUBECTL.format(kubectl=shutil.which("kubectl"), address=address), encoding="utf-8"
        )
        kubectl.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": os.devnull,
            "HOME": str(folder),
        }
        try:
            yield cluster, environment
        finally:
            server.shutdown()
            server.server_close()
            for process in cluster.lighthouses.values():
                process.kill()
                process.wait()
            for pod in cluster.pods.values():
                os.killpg(pod.process.pid, signal.SIGKILL)
                pod.process.wait()
