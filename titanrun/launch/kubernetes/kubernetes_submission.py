"""The Job of one run, as `titanrun launch` shows, submits and follows it."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.job_objects import build_job_name, build_objects, format_objects
from titanrun.launch.kubernetes.kubectl import POLL_SECONDS, JobFollower, Kubectl, submit_objects
from titanrun.launch.submission import PrintLine

# below the working directory: this machine need not see the volumes of the pods
FOLDER = "launch"


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
