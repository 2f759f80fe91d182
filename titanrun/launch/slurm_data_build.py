"""Tokenization as Slurm jobs: an array with a task for each part, and a job that finishes.

Both run `titanrun data build` on the resolved recipe, so that a recipe that is edited meanwhile
does not change what later tasks do.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from titanrun.config.problems import ProblemsFound
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_launcher import (
    FOLDER,
    check_one_line,
    escape_sbatch_pattern,
    iter_optional_sbatch_options,
)
from titanrun.launch.slurm_queue import (
    cancel_job,
    check_not_queued,
    get_slurm_program,
    submit_job,
    write_job_script,
)

PARTS_SCRIPT, FINISH_SCRIPT = "parts.sh", "finish.sh"
RECIPE_FILE = "resolved.yaml"
TRAINING_OPTIONS = ("gpus-per-node", "cpus-per-task")
"""Options of sbatch that the launch section sets for ranks."""


@dataclass(frozen=True, slots=True)
class SlurmDataBuild:
    """The jobs that tokenize the data of one recipe.

    Args:
        config: The launch section: partition, account, time limit and the like. Accelerators and
            the numbers of nodes and ranks are those of training, and are not requested.
        name: Name of the run.
        num_parts: Tasks of the array.
        num_workers: Processes of each task, one per core.
        folder: Folder of the scripts and logs, which the nodes see too.
        start_folder: Where the jobs start.
        resolved_text: The resolved recipe.
        allows_code: Whether the user allowed code that the recipe names. A node may have another
            home folder than the machine where that is remembered.
    """

    config: SlurmLaunchConfig
    name: str
    num_parts: int
    num_workers: int
    folder: Path
    start_folder: Path
    resolved_text: str
    allows_code: bool = False

    @property
    def text(self) -> str:
        """Both batch scripts."""
        return f"{self.build_parts_script()}\n{self.build_finish_script()}"

    def build_parts_script(self) -> str:
        """Build the batch script of the array."""
        part = f'--part "$SLURM_ARRAY_TASK_ID/{self.num_parts}" --workers {self.num_workers}'
        return self._format_script(
            "parts-%A_%a.log", [f"--array=1-{self.num_parts}"], part, suffix="parts"
        )

    def build_finish_script(self) -> str:
        """Build the batch script of the job that completes the index after the array."""
        return self._format_script("finish-%j.log", [], "--finish", suffix="finish")

    def submit(self) -> tuple[int, int]:
        """Write the scripts and submit both jobs.

        Returns:
            The job numbers of the array and of the job that waits for it.

        Raises:
            ProblemsFound: Slurm is not here, rejects a job, or an earlier one is not over.
        """
        get_slurm_program("sbatch")
        check_not_queued(self.folder, action="tokenizing, with scripts in")
        parts = write_job_script(self.build_parts_script(), self.folder, name=PARTS_SCRIPT)
        finish = write_job_script(self.build_finish_script(), self.folder, name=FINISH_SCRIPT)
        self._recipe_file.write_text(self.resolved_text, encoding="utf-8")
        array = submit_job(parts)
        try:
            # after any end: it names the units that a failed task did not tokenize
            return array, submit_job(finish, after=array)
        except ProblemsFound:
            cancel_job(array)
            raise

    @property
    def _recipe_file(self) -> Path:
        return self.folder / FOLDER / RECIPE_FILE

    def _format_script(
        self, log: str, further_options: Sequence[str], build_options: str, *, suffix: str
    ) -> str:
        logs = escape_sbatch_pattern((self.folder / FOLDER).absolute())
        options = [
            f"--job-name={shlex.quote(f'{self.name}-{suffix}')}",
            f"--chdir={shlex.quote(str(self.start_folder))}",
            f"--output={shlex.quote(logs + log)}",
            "--open-mode=append",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.num_workers}",
            *iter_optional_sbatch_options(self.config, omit=TRAINING_OPTIONS),
            "--requeue" if self.config.requeue else "--no-requeue",
            *further_options,
        ]
        recipe = shlex.quote(str(self._recipe_file))
        words = f"{build_options} {TRUST_FLAG}" if self.allows_code else build_options
        lines = [
            "#!/bin/bash",
            "# written by titanrun data build --slurm",
            *(f"#SBATCH {check_one_line(line)}" for line in (*options, *self.config.options)),
            "",
            *self.config.setup,
            f"exec {shlex.quote(sys.executable)} -m titanrun data build {recipe} {words}",
        ]
        return "\n".join(lines) + "\n"
