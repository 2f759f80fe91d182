"""The Slurm job of one run, as `titanrun launch` shows, submits and follows it."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_launcher import FOLDER, SCRIPT, build_run_script
from titanrun.launch.slurm_queue import follow_job, get_slurm_program, submit_job, write_job_script
from titanrun.launch.submission import PrintLine
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.rundir.run_directory import RunDirectory, write_recipe_files
from titanrun.recipe.rundir.run_files import STATUS, read_json_or_empty


@dataclass(slots=True)
class SlurmSubmission:
    """Job of a run.

    Args:
        config: The launch section.
        directory: The run directory, which the nodes see too.
        resolved: The run.
        command: Words of the command line, for run.json.
        allows_code: Whether the user allowed code that the recipe names.
    """

    config: SlurmLaunchConfig
    directory: RunDirectory
    resolved: Resolved
    command: tuple[str, ...]
    allows_code: bool = False
    _job: int = field(init=False, default=0)
    _began: float = field(init=False, default=0.0)

    @property
    def text(self) -> str:
        """The batch script."""
        return build_run_script(
            self.config,
            self.directory.path,
            name=str(self.resolved.run.name),
            folder=Path.cwd(),
            groups=self.resolved.run.fault_tolerance,
            allows_code=self.allows_code,
        )

    @property
    def cancel_command(self) -> str:
        """Command that cancels the job."""
        return f"scancel {self._job}"

    @property
    def _log(self) -> Path:
        return self.directory.path / FOLDER / f"job-{self._job}.log"

    def submit(self) -> str:
        """Write the recipe and the script into the run directory, and submit the script."""
        get_slurm_program("sbatch")
        text = self.text
        write_recipe_files(self.directory, self.resolved, list(self.command))
        self._began = time.time()
        self._job = submit_job(write_job_script(text, self.directory.path))
        return (
            f"job {self._job} trains {self.directory.path}; script: "
            f"{self._log.with_name(SCRIPT)}, log: {self._log}"
        )

    def follow(self, print_line: PrintLine) -> int:
        """Forward the log of the job until it is over."""
        state = follow_job(self._job, self._log, print_line)
        status = read_json_or_empty(self.directory.path / STATUS)
        # a job that never started training leaves the log of the previous one
        told = status.get("exit_code") if status.get("heartbeat", 0) > self._began else None
        return told if isinstance(told, int) else state.exit_code or int(state.state != "COMPLETED")
