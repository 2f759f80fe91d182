"""The Job of one run, as `titanrun launch` shows, submits and follows it."""

import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import FrameType

from titanrun.config.exit_codes import EXIT_PREEMPTED
from titanrun.config.problems import problem_error
from titanrun.distributed.spec.run_signals import (
    handle_signals,
    ignore_run_signals,
    list_stop_signals,
)
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.job_objects import build_job_name, build_objects, format_objects
from titanrun.launch.kubernetes.kubectl import (
    POLL_SECONDS,
    JobFollower,
    Kubectl,
    find_end,
    submit_objects,
)
from titanrun.launch.submission import PrintLine

# below the working directory: this machine need not see the volumes of the pods
FOLDER = "launch"
ATTACHED_FLAG = "--attached"
# until a pod that was killed is gone
KILL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class KubernetesSubmission:
    """Job of a run.

    Args:
        config: The launch section.
        run: Name of the run.
        resolved: Text of the resolved recipe.
        folder: The run directory in the pods.
        allows_code: Whether the user allowed code that the recipe names.
        poll_seconds: How often the state of the Job is read.
    """

    config: KubernetesLaunchConfig
    run: str
    resolved: str
    folder: PurePosixPath
    allows_code: bool = False
    poll_seconds: float = POLL_SECONDS

    @property
    def name(self) -> str:
        """Name of the Job."""
        return build_job_name(self.run, str(self.folder), self.config.nnodes)

    @property
    def text(self) -> str:
        """The objects as YAML."""
        return format_objects(
            build_objects(
                self.config,
                name=self.name,
                resolved=self.resolved,
                folder=self.folder,
                allows_code=self.allows_code,
            )
        )

    @property
    def cancel_command(self) -> str:
        """Command that deletes the Job; its pods save first."""
        words = self.config.namespace
        return f"kubectl delete job {self.name}" + ("" if words is None else f" -n {words}")

    def submit(self) -> str:
        """Submit the objects."""
        kubectl = Kubectl(self.config)
        file = submit_objects(kubectl, [self.name], self.text, Path(FOLDER) / self.name)
        return f"job {self.name} trains {self.folder} in the pods; manifest: {file}"

    def follow(self, print_line: PrintLine) -> int:
        """Forward the log of pod 0 until the Job is over."""
        return JobFollower(Kubectl(self.config), self.name, print_line, self.poll_seconds).follow()

    def is_alive(self) -> bool:
        """Return whether the Job is queued or running.

        Raises:
            ProblemsFound: It trains another recipe.
        """
        kubectl = Kubectl(self.config)
        job = kubectl.find_job(self.name)
        if job is None or find_end(job) is not None:
            return False
        if kubectl.read_recipe(self.name) != self.resolved:
            raise problem_error(
                "conflict",
                f"job '{self.name}' trains another recipe in '{self.folder}'",
                path=("launch",),
                hint=f"wait for it, or delete it: {self.cancel_command}",
            )
        return True

    def cancel(self) -> None:
        """Delete the Job, and wait until its pods have saved."""
        kubectl = Kubectl(self.config)
        kubectl.run("delete", "job", self.name, "--ignore-not-found")
        end = time.monotonic() + self.config.save_seconds + KILL_SECONDS
        while kubectl.list_pods(self.name) and time.monotonic() < end:
            time.sleep(self.poll_seconds)

    def train(self, print_line: PrintLine) -> int:
        """Submit the Job, or follow the one there is, until it is over, and return its exit code.

        A signal deletes the Job: its pods save, and the code is 75.
        """
        with handle_signals(list_stop_signals(), interrupt):
            try:
                print_line(f"job {self.name} is followed" if self.is_alive() else self.submit())
                return self.follow(print_line)
            except KeyboardInterrupt:
                # a second signal would leave the pods to end on their own
                ignore_run_signals()
                print_line(f"job {self.name} is deleted, its pods save")
                self.cancel()
                return EXIT_PREEMPTED


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, whatever the signal is."""
    raise KeyboardInterrupt
