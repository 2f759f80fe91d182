"""Kubernetes through kubectl: submits the objects of a run, and reports the state of its Job."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.config.exit_codes import EXIT_PREEMPTED
from titanrun.config.json_text import parse_json
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.job_objects import (
    CONTAINER,
    INDEX_ANNOTATION,
    JOB_LABEL,
    RESOLVED,
)
from titanrun.recipe.rundir.run_files import write_indented_json

MANIFEST = "job.yaml"
JOB_FILE = "job.json"
# poll rarely: the API server serves all users of the cluster
POLL_SECONDS = 5.0
MAX_STATE_FAILURES = 12
# kubectl logs each attempt before its message
LOG_LINE = re.compile(r"^[EIW]\d{4} .*\n?", re.MULTILINE)
NO_CLUSTER = re.compile("connection to the server|connect to the server|context was not found")
Object = Mapping[str, Any]
PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The program, with the context and namespace of a run."""

    config: KubernetesLaunchConfig

    def build_command(self, *words: str) -> list[str]:
        """Build a command. Raise ProblemsFound if the program is missing."""
        program = shutil.which("kubectl")
        if program is None:
            hint = "install it; --dry-run shows what would be submitted without it"
            raise problem_error(
                "usage",
                "launch: kubernetes needs kubectl, which is not installed on this machine",
                path=("launch",),
                hint=hint,
            )
        scope = {"--context": self.config.context, "--namespace": self.config.namespace}
        chosen = [word for pair in scope.items() if pair[1] is not None for word in pair]
        return [program, *(str(word) for word in chosen), *words]

    def run(self, *words: str) -> str:
        """Run a command and return its output. Raise ProblemsFound if it fails."""
        done = subprocess.run(
            self.build_command(*words), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = " ".join(LOG_LINE.sub("", done.stderr or done.stdout).split())
            hint = (
                "list this machine's clusters with 'kubectl config get-contexts', and select one "
                "with launch.context"
            )
            raise problem_error(
                "usage",
                f"kubectl {words[0]} failed: {said or 'no message'}",
                path=("launch",),
                hint=hint if NO_CLUSTER.search(said) else None,
            )
        return done.stdout

    def find_job(self, name: str) -> Object | None:
        """Return a Job, or None if there is none of this name."""
        text = self.run("get", "job", name, "--output", "json", "--ignore-not-found")
        return parse_json(text) if text.strip() else None

    def read_recipe(self, name: str) -> str | None:
        """Return the recipe in the ConfigMap of a run, or None if there is none."""
        text = self.run("get", "configmap", name, "--output", "json", "--ignore-not-found")
        return parse_json(text).get("data", {}).get(RESOLVED) if text.strip() else None

    def list_pods(self, name: str) -> list[Object]:
        """Return the pods of a Job, the oldest first."""
        text = self.run("get", "pods", "--selector", f"{JOB_LABEL}={name}", "--output", "json")
        pods: list[Object] = parse_json(text)["items"]
        return sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp") or "")


def find_end(job: Object) -> Object | None:
    """Return the condition with which a Job ended, or None if it is not over."""
    conditions = job.get("status", {}).get("conditions") or []
    return next(
        (
            item
            for item in conditions
            if item["type"] in ("Complete", "Failed") and item["status"] == "True"
        ),
        None,
    )


def submit_objects(kubectl: Kubectl, jobs: Sequence[str], text: str, folder: Path) -> Path:
    """Submit the objects of a run, and return the file that holds them.

    Jobs of these names that are over are deleted first. Raises ProblemsFound if one is not over.
    """
    before = {name: kubectl.find_job(name) for name in jobs}
    for name, job in before.items():
        if job is not None and find_end(job) is None:
            raise problem_error(
                "conflict",
                f"job '{name}' is already training this run: {describe_state(job)}",
                path=("launch",),
                hint=f"wait for it, or delete it: kubectl delete job {' '.join(jobs)}",
            )
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / MANIFEST
    file.write_text(text, encoding="utf-8")
    for name, job in before.items():
        if job is not None:
            kubectl.run("delete", "job", name, "--ignore-not-found")
    kubectl.run("apply", "--filename", str(file))
    records = [build_job_record(kubectl, name) for name in jobs]
    # the first has what there is of a run with one Job
    others = {"groups": records} if len(records) > 1 else {}
    write_indented_json(folder / JOB_FILE, {**records[0], **others})
    return file


def build_job_record(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Build what `launch/job.json` keeps of a submitted Job."""
    metadata = (kubectl.find_job(name) or {}).get("metadata", {})
    return {
        "name": name,
        "namespace": metadata.get("namespace"),
        "context": kubectl.config.context,
        "uid": metadata.get("uid"),
    }


def describe_state(job: Object) -> str:
    """Describe the state of a Job in a few words."""
    end, status = find_end(job), job.get("status", {})
    if end is not None:
        return str(end["type"]).lower()
    if job.get("spec", {}).get("suspend"):
        return "suspended, waits in its queue"
    counts = [f"{status[key]} {key}" for key in ("active", "failed") if status.get(key)]
    return ", ".join(counts) or "no pods yet"


def find_pending_reason(pods: Sequence[Object]) -> str | None:
    """Return why a pod waits, or None if none does."""
    for pod in pods:
        status = pod.get("status", {})
        if status.get("phase") != "Pending":
            continue
        scheduled = [
            item
            for item in status.get("conditions") or []
            if item["type"] == "PodScheduled" and item["status"] == "False"
        ]
        waiting = [
            item["state"]["waiting"]
            for item in status.get("containerStatuses") or []
            if "waiting" in item.get("state", {})
        ]
        for item in (*scheduled, *waiting):
            said = item.get("message") or item.get("reason")
            if said:
                return f"{pod['metadata']['name']} waits: {said}"
    return None


def get_exit_codes(pods: Sequence[Object]) -> list[int]:
    """Return the exit codes of the pods that have ended, in order of their end."""
    ended = [
        item["state"]["terminated"]
        for pod in pods
        for item in pod.get("status", {}).get("containerStatuses") or []
        if item["name"] == CONTAINER and "terminated" in item.get("state", {})
    ]
    ended.sort(key=lambda state: state.get("finishedAt") or "")
    return [int(state["exitCode"]) for state in ended]


@dataclass(slots=True)
class JobFollower:
    """Follower of one Job: forwards the log of pod 0 and the changes of its state.

    Args:
        kubectl: The program.
        name: Name of the Job.
        print_line: Prints a line for the user.
        poll_seconds: How often the state is read.
        shows_log: Whether the log is forwarded.
    """

    kubectl: Kubectl
    name: str
    print_line: PrintLine
    poll_seconds: float = POLL_SECONDS
    shows_log: bool = True
    _shown: str = ""
    _pods: list[Object] = field(default_factory=list)
    _logged: set[str] = field(default_factory=set)
    _log: "subprocess.Popen[bytes] | None" = None
    _failures: int = 0

    def follow(self) -> int:
        """Wait for the end of the Job and return the exit code of the run."""
        try:
            while (code := self.look()) is None:
                time.sleep(self.poll_seconds)
            return code
        finally:
            self.close()

    def look(self) -> int | None:
        """Report what is new, and return the exit code of the run if the Job is over."""
        job = self._read()
        if job is None:
            return None
        said = find_pending_reason(self._pods) or describe_state(job)
        if said != self._shown:
            self._shown = said
            self.print_line(f"job {self.name}: {said}")
        self._forward_logs(self._pods)
        if find_end(job) is None:
            return None
        self._wait_for_log()
        return self._report_end(job, self._pods)

    def close(self) -> None:
        """End what forwards the log."""
        if self._log is not None:
            self._log.terminate()
            self._log.wait()

    def _read(self) -> Object | None:
        """Return the Job, and read its pods, or return None while the server does not answer."""
        try:
            job = self.kubectl.find_job(self.name)
            self._pods = self.kubectl.list_pods(self.name)
        except ProblemsFound:
            self._failures += 1
            if self._failures >= MAX_STATE_FAILURES:
                raise
            return None
        self._failures = 0
        if job is None:
            raise problem_error(
                "usage", f"job '{self.name}' was deleted", path=("launch",), hint="submit it again"
            )
        return job

    def _forward_logs(self, pods: Sequence[Object]) -> None:
        """Forward the log of each pod of index 0 once, one after another."""
        if not self.shows_log or (self._log is not None and self._log.poll() is None):
            return
        for pod in pods:
            about = pod["metadata"]
            if (
                (about.get("annotations") or {}).get(INDEX_ANNOTATION) == "0"
                and about["uid"] not in self._logged
                and pod.get("status", {}).get("phase") in ("Running", "Succeeded", "Failed")
            ):
                self._logged.add(about["uid"])
                command = self.kubectl.build_command(
                    "logs", "--follow", about["name"], "--container", CONTAINER
                )
                self._log = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.DEVNULL
                )
                return

    def _wait_for_log(self) -> None:
        """Let the log of an ended pod be forwarded to its end."""
        if self._log is not None:
            with suppress(subprocess.TimeoutExpired):
                self._log.wait(timeout=10 * self.poll_seconds)

    def _report_end(self, job: Object, pods: Sequence[Object]) -> int:
        end = find_end(job)
        assert end is not None
        if end["type"] == "Complete":
            return 0
        self.print_line(f"job {self.name} failed: {end.get('message') or end.get('reason')}")
        failed = [code for code in get_exit_codes(pods) if code not in (0, EXIT_PREEMPTED)]
        return failed[0] if failed else 1
