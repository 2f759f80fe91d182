"""A sweep as one Slurm job: an array with a task for each remaining run."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.config import LaunchConfig, SlurmLaunchConfig
from titanrun.launch.slurm_launcher import build_sweep_script
from titanrun.launch.slurm_queue import (
    check_not_queued,
    get_slurm_program,
    submit_job,
    write_job_script,
)
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_recipe_files
from titanrun.sweep.run_sources import ACTIVE_RUN_STATES
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.sweep_results import DONE_STATES, get_sweep_run_state
from titanrun.sweep.validate_points import PlannedRun

LAUNCH = ("launch",)


def get_unfinished_runs(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Return the runs that are neither finished, archived nor currently training."""
    return [
        run
        for run in runs
        if get_sweep_run_state(run.folder) not in (*ACTIVE_RUN_STATES, *DONE_STATES)
    ]


def build_array_script(
    sweep: Sweep, runs: Sequence[PlannedRun], *, allows_code: bool = False
) -> str:
    """Build the batch script for these runs.

    Raises ProblemsFound if they do not fit one array.
    """
    config = get_array_config(sweep, runs)
    if sweep.config.early_stopping is not None:
        message = "early_stopping is not supported for a Slurm array: no process monitors its runs"
        raise problem_error(
            "usage",
            message,
            path=("early_stopping",),
            hint="remove early_stopping, or omit --launch",
        )
    return build_sweep_script(
        config,
        [run.folder for run in runs],
        name=sweep.file.stem,
        folder=Path.cwd(),
        sweep=sweep.folder,
        slots=sweep.config.slots,
        allows_code=allows_code,
    )


def get_array_config(sweep: Sweep, runs: Sequence[PlannedRun]) -> SlurmLaunchConfig:
    """Return the launch section that all runs share.

    Raises ProblemsFound if the runs do not fit one array.
    """
    config = runs[0].resolved.run.launch
    places = {run.resolved.run.launch.name for run in runs}
    if not isinstance(config, SlurmLaunchConfig) and len(places) == 1:
        raise build_unsupported_launch_problem(config)
    if any(dump_config(run.resolved.run.launch) != dump_config(config) for run in runs):
        raise problem_error(
            "usage",
            "this sweep varies launch, but all tasks of an array have equal resources",
            path=LAUNCH,
            hint="remove it",
        )
    assert isinstance(config, SlurmLaunchConfig)
    if any(run.resolved.run.fault_tolerance.enable for run in runs):
        raise problem_error(
            "not-built",
            "a Slurm array does not start replica groups: each of its tasks is one group",
            path=("fault_tolerance", "enable"),
            hint="set it to false, or use titanrun launch for each run",
        )
    return config


def build_unsupported_launch_problem(config: LaunchConfig) -> ProblemsFound:
    """Build the problem of a launch section to which a sweep cannot submit."""
    names = {"local": "this machine", "skypilot": "SkyPilot"}
    where = names.get(config.name, f"'{config.name}'")
    hint = "set launch: slurm or launch: kubernetes in its recipe, or " + (
        "omit --launch" if config.name == "local" else "use titanrun launch for each run of --list"
    )
    return problem_error(
        "usage",
        f"the recipe of this sweep launches on {where}, but --launch submits to Slurm and "
        "Kubernetes only",
        path=LAUNCH,
        hint=hint,
    )


def submit_array(
    sweep: Sweep,
    runs: Sequence[PlannedRun],
    environment: Mapping[str, str],
    now: datetime,
    *,
    allows_code: bool = False,
) -> int:
    """Write the recipe of each run into its folder and submit them together.

    Return the job number.
    """
    text = build_array_script(sweep, runs, allows_code=allows_code)
    get_slurm_program("sbatch")
    check_not_queued(sweep.folder)
    for run in runs:
        resolved = resolve_recipe(sweep.recipe, run.arguments, environment=environment)
        write_recipe_files(
            select_run_directory(resolved, now),
            resolved,
            ["titanrun", "sweep", str(sweep.file), "--launch"],
        )
    return submit_job(write_job_script(text, sweep.folder))
