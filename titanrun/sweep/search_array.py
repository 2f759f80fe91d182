"""A search as one Slurm job: an array whose tasks train one trial each."""

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_launcher import build_search_script
from titanrun.launch.slurm_queue import get_slurm_program
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_recipe_files
from titanrun.sweep.slurm_array import get_array_config
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.validate_points import PlannedRun

TASK_FLAG = "--array-task"
TASK_PATTERN = "slurm-*"
TASK_VARIABLES = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass(frozen=True, slots=True)
class SearchArray:
    """The array of a search.

    Args:
        sweep: The sweep file.
        config: The launch section of all trials.
        overrides: Overrides of the command line.
        allows_code: Whether the user allowed code that the recipe names.
    """

    sweep: Sweep
    config: SlurmLaunchConfig
    overrides: tuple[str, ...]
    allows_code: bool

    def build_script(self, num_tasks: int) -> str:
        """Build the batch script."""
        sweep = self.sweep
        trust = [TRUST_FLAG] if self.allows_code else []
        words = ["titanrun", "sweep", str(sweep.file), *self.overrides, TASK_FLAG, *trust]
        return build_search_script(
            self.config,
            [sys.executable, "-m", *words],
            num_tasks=num_tasks,
            name=sweep.file.stem,
            folder=Path.cwd(),
            sweep=sweep.folder,
            slots=sweep.config.slots,
        )


def build_search_array(
    sweep: Sweep,
    samples: Sequence[PlannedRun],
    overrides: Sequence[str],
    *,
    allows_code: bool,
) -> SearchArray:
    """Build the array of a search whose space has these runs at its ends.

    Raises ProblemsFound if its trials do not fit one array.
    """
    config = get_array_config(sweep, samples)
    if sweep.has_database:
        raise problem_error(
            "conflict",
            "the tasks of a Slurm array cannot share a database file, which is for one machine",
            path=("search", "storage"),
            hint="remove storage, or name a journal file",
        )
    return SearchArray(sweep, config, tuple(overrides), allows_code)


@dataclass(frozen=True, slots=True)
class SrunStarter:
    """Starter of the run of an array's task: a rank per task of the job, started by srun.

    Args:
        sweep: The sweep file.
        environment: The environment of this process.
        allows_code: Whether the user allowed code that the recipe names.
    """

    sweep: Sweep
    environment: Mapping[str, str]
    allows_code: bool

    def build_command(self, run: PlannedRun) -> Sequence[str]:
        """Write the recipe of a run into its folder and return the command that trains it."""
        resolved = resolve_recipe(self.sweep.recipe, run.arguments, environment=self.environment)
        write_recipe_files(
            select_run_directory(resolved, datetime.now().astimezone()),
            resolved,
            ["titanrun", "sweep", str(self.sweep.file), "--launch"],
        )
        trust = [TRUST_FLAG] if self.allows_code else []
        resume = [sys.executable, "-m", "titanrun", "resume", str(run.folder)]
        return [get_slurm_program("srun"), "--wait=60", *resume, *trust]

    def build_environment(self) -> Mapping[str, str]:
        """Return the environment of the job: Slurm gives each rank its cores."""
        return self.environment

    def get_stop_signal(self, number: int) -> int:
        """Return a signal that srun passes on to the ranks: it kills them where it gets SIGTERM."""
        return signal.SIGUSR1


def get_task_name(environment: Mapping[str, str]) -> str:
    """Return the name of this task among the processes of a search.

    It is the same when Slurm starts the task again.
    """
    numbers = [environment.get(name, "") for name in TASK_VARIABLES]
    if not all(number.isdigit() for number in numbers):
        raise problem_error(
            "usage",
            f"{TASK_FLAG} is for the tasks of a Slurm array, and this is none",
            hint="use --launch to submit the array of a search",
        )
    return "-".join(["slurm", *numbers])
