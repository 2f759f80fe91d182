"""The task of one run, as `titanrun launch` shows, submits and follows it."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from titanrun.config.problems import problem_error
from titanrun.launch.skypilot.config import SkyPilotLaunchConfig
from titanrun.launch.skypilot.sky_program import build_sky_command, find_job_state, run_sky
from titanrun.launch.skypilot.task_file import RESOLVED, build_task, build_task_name, format_task
from titanrun.launch.submission import PrintLine

# below the working directory: this machine need not see the volumes of the machines
FOLDER = "launch"
TASK = "task.yaml"


@dataclass(frozen=True, slots=True)
class SkySubmission:
    """Task of a run.

    Args:
        config: The launch section.
        run: Name of the run.
        resolved: Text of the resolved recipe.
        folder: The run directory on the machines; None if each start makes a new one.
        storage: What tells the run apart from others of its name: its run directory, or the address
            of its checkpoints.
        environment: The environment variables, for the secrets.
        allows_code: Whether the user allowed code that the recipe names.
    """

    config: SkyPilotLaunchConfig
    run: str
    resolved: str
    folder: PurePosixPath | None
    storage: str
    environment: Mapping[str, str]
    allows_code: bool = False

    @property
    def name(self) -> str:
        """Name of the task."""
        return build_task_name(self.run, self.storage)

    @property
    def text(self) -> str:
        """The task as YAML."""
        task = build_task(
            self.config,
            name=self.name,
            recipe=str(Path(FOLDER) / self.name / RESOLVED),
            folder=self.folder,
            allows_code=self.allows_code,
        )
        return format_task(task)

    @property
    def cancel_command(self) -> str:
        """Command that ends the run on its machines."""
        if self.config.managed:
            return f"sky jobs cancel --name {self.name}"
        return f"sky cancel {self.name} --all"

    def submit(self) -> str:
        """Write the task and the recipe, and submit the task."""
        self._check_secrets()
        state = find_job_state(self.name) if self.config.managed else None
        if state is not None:
            raise problem_error(
                "conflict",
                f"job '{self.name}' is already training this run: {state}",
                path=("launch",),
                hint=f"wait for it, or cancel it: {self.cancel_command}",
            )
        folder = Path(FOLDER) / self.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESOLVED).write_text(self.resolved, encoding="utf-8")
        (folder / TASK).write_text(self.text, encoding="utf-8")
        if self.config.managed:
            words = ["jobs", "launch", "--name", self.name]
        else:
            words = ["launch", "--cluster", self.name]
        words += ["--yes", "--detach-run"]
        words += [word for name in self.config.secrets for word in ("--secret", name)]
        run_sky(*words, str(folder / TASK))
        place = "" if self.folder is None else f" in {self.folder}"
        return f"job {self.name} trains{place}; task: {folder / TASK}"

    def _check_secrets(self) -> None:
        """Raise a problem for secrets that this machine does not have."""
        missing = [name for name in self.config.secrets if not self.environment.get(name)]
        if missing:
            raise problem_error(
                "usage",
                f"the environment variable {missing[0]} is not set on this machine",
                path=("launch", "secrets"),
                hint="set it, or remove it from launch.secrets",
            )

    def follow(self, print_line: PrintLine) -> int:
        """Forward the log of the run until it is over.

        The exit code is that of `sky`: 0, or 100 if the run failed.
        """
        words = ("jobs", "logs", "--name") if self.config.managed else ("logs",)
        return subprocess.run(build_sky_command(*words, self.name), check=False).returncode
