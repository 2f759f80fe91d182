"""The Jobs of a run with replica groups, as `titanrun launch` shows, submits and follows them."""

import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.group_objects import (
    LIGHTHOUSE,
    RUN_LABEL,
    build_group_objects,
    build_groups_name,
    list_group_jobs,
)
from titanrun.launch.kubernetes.job_objects import format_objects
from titanrun.launch.kubernetes.kubectl import POLL_SECONDS, JobFollower, Kubectl, submit_objects
from titanrun.launch.kubernetes.kubernetes_submission import FOLDER
from titanrun.launch.submission import PrintLine


@dataclass(frozen=True, slots=True)
class GroupSubmission:
    """Jobs of a run, one for each replica group.

    Args:
        config: The launch section.
        groups: The section with the groups.
        run: Name of the run.
        resolved: Text of the resolved recipe.
        folder: The run directory in the pods.
        allows_code: Whether the user allowed code that the recipe names.
        poll_seconds: How often the states of the Jobs are read.
    """

    config: KubernetesLaunchConfig
    groups: FaultToleranceConfig
    run: str
    resolved: str
    folder: PurePosixPath
    allows_code: bool = False
    poll_seconds: float = POLL_SECONDS

    @property
    def name(self) -> str:
        """Name that all objects begin with."""
        return build_groups_name(self.run, str(self.folder), self.groups)

    @property
    def text(self) -> str:
        """The objects as YAML."""
        return format_objects(
            build_group_objects(
                self.config,
                self.groups,
                name=self.name,
                resolved=self.resolved,
                folder=self.folder,
                allows_code=self.allows_code,
            )
        )

    @property
    def cancel_command(self) -> str:
        """Command that deletes the Jobs, whose pods save first, and the lighthouse."""
        words = self.config.namespace
        chosen = f"{RUN_LABEL}={self.name}"
        command = f"kubectl delete job,deployment,service --selector {chosen}"
        return command + ("" if words is None else f" -n {words}")

    def submit(self) -> str:
        """Submit the objects."""
        kubectl, jobs = Kubectl(self.config), list_group_jobs(self.name, self.groups)
        file = submit_objects(kubectl, jobs, self.text, Path(FOLDER) / self.name)
        return f"jobs {jobs[0]} to {jobs[-1]} train {self.folder} in the pods; manifest: {file}"

    def follow(self, print_line: PrintLine) -> int:
        """Forward the log of the first group until all Jobs are over, and end their lighthouse.

        Return 0 if one of them completed: it has seen the end of the run.
        """
        kubectl = Kubectl(self.config)
        followers = [
            JobFollower(kubectl, name, print_line, self.poll_seconds, shows_log=number == 0)
            for number, name in enumerate(list_group_jobs(self.name, self.groups))
        ]
        codes: dict[str, int] = {}
        try:
            while True:
                for follower in followers:
                    if follower.name not in codes and (code := follower.look()) is not None:
                        codes[follower.name] = code
                if len(codes) == len(followers):
                    break
                time.sleep(self.poll_seconds)
        finally:
            for follower in followers:
                follower.close()
        kubectl.run("delete", "deployment,service", f"{self.name}-{LIGHTHOUSE}")
        return 0 if 0 in codes.values() else next(iter(codes.values()))
