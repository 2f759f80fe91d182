"""Runs of a sweep as Jobs of Kubernetes, one for each."""

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from titanrun.config.problems import problem_error
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.kubernetes_submission import ATTACHED_FLAG, KubernetesSubmission
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.dump_folder import is_in_volume
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.validate_points import PlannedRun


@dataclass(frozen=True, slots=True)
class JobStarter:
    """Starter of runs that are a Job each: a command on this machine submits and follows it.

    Args:
        recipe: The recipe file.
        allows_code: Whether the user allowed code that the recipe names.
    """

    recipe: str
    allows_code: bool

    def build_command(self, run: PlannedRun) -> Sequence[str]:
        """Return the command whose end is that of the run."""
        trust = [TRUST_FLAG] if self.allows_code else []
        launch = [sys.executable, "-m", "titanrun", "launch"]
        return [*launch, self.recipe, *run.arguments, ATTACHED_FLAG, *trust]

    def build_environment(self) -> Mapping[str, str]:
        """Return the environment, in which kubectl finds its cluster."""
        return get_environment()

    def get_stop_signal(self, number: int) -> int:
        """Return SIGTERM: the pods get no other signal."""
        return signal.SIGTERM


def uses_jobs(runs: Sequence[PlannedRun]) -> bool:
    """Return whether all runs are for Kubernetes."""
    return all(isinstance(run.resolved.run.launch, KubernetesLaunchConfig) for run in runs)


def build_run_job(run: PlannedRun, *, allows_code: bool) -> KubernetesSubmission:
    """Build the Job of a run."""
    config = run.resolved.run.launch
    assert isinstance(config, KubernetesLaunchConfig)
    folder, name = PurePosixPath(run.folder), str(run.resolved.run.name)
    return KubernetesSubmission(config, name, run.resolved.text, folder, allows_code)


def check_runs_fit_jobs(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    """Raise ProblemsFound if runs of the sweep cannot be a Job each."""
    if any(run.resolved.run.fault_tolerance.enable for run in runs):
        raise problem_error(
            "not-built",
            "a sweep does not start replica groups, which are several Jobs",
            path=("fault_tolerance", "enable"),
            hint="set it to false, or use titanrun launch for each run of --list",
        )
    for run in runs:
        config = run.resolved.run.launch
        assert isinstance(config, KubernetesLaunchConfig)
        volumes = [volume.path for volume in config.volumes]
        if not is_in_volume(PurePosixPath(sweep.folder), volumes):
            raise problem_error(
                "conflict",
                f"the sweep's folder '{sweep.folder}' is in no volume of the launch section, and "
                "lost with the pods",
                path=("folder",),
                hint=f"set folder to a folder in {volumes[0]}"
                if volumes
                else "set launch.volumes, and folder to a folder in one of them",
            )


def check_sees_volume(sweep: Sweep, runs: Sequence[PlannedRun]) -> None:
    """Raise ProblemsFound if this machine does not see the volume of the sweep's folder."""
    for run in runs:
        config = run.resolved.run.launch
        assert isinstance(config, KubernetesLaunchConfig)
        for volume in config.volumes:
            if is_in_volume(PurePosixPath(sweep.folder), [volume.path]) and not (
                Path(volume.path).is_dir()
            ):
                raise problem_error(
                    "conflict",
                    f"the volume '{volume.path}' is no folder of this machine, and a sweep reads "
                    "the results of its runs there",
                    path=("folder",),
                    hint="mount it, or run the command in a pod that mounts it",
                )
