"""A sweep as one job of Slurm: an array with a task for each run that is left."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from titanrun.config.base import dump
from titanrun.config.problems import Problem, ProblemsFound, fail
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm import script_of_sweep
from titanrun.launch.slurm_queue import program, refuse_queued, submit, write_script
from titanrun.recipe.resolve import resolve
from titanrun.recipe.run_dir import find_run_directory, write_recipe
from titanrun.sweep.examined import Planned
from titanrun.sweep.points import Sweep
from titanrun.sweep.results import state_of
from titanrun.sweep.runner import ALIVE

LAUNCH = ("launch",)


def runs_left(runs: Sequence[Planned]) -> list[Planned]:
    """The runs that are neither finished nor training somewhere."""
    return [run for run in runs if state_of(run.folder) not in (*ALIVE, "finished")]


def array_script(sweep: Sweep, runs: Sequence[Planned]) -> str:
    """The batch script for these runs. Raises ProblemsFound where one array cannot hold them."""
    config = runs[0].resolved.run.launch
    if not isinstance(config, SlurmLaunchConfig):
        raise fail(
            "usage",
            "this sweep is for this machine",
            path=LAUNCH,
            help="say launch: slurm in its recipe, or leave --launch out",
        )
    if any(dump(run.resolved.run.launch) != dump(config) for run in runs):
        raise ProblemsFound(
            [
                Problem(
                    "usage",
                    "the tasks of an array are alike, and this sweep varies launch",
                    LAUNCH,
                    help="take it out",
                )
            ]
        )
    if sweep.config.early_stopping is not None:
        message = "nobody watches the runs of an array, to end them early"
        raise fail(
            "usage",
            message,
            path=("early_stopping",),
            help="take early_stopping out, or leave --launch out",
        )
    folders = [run.folder for run in runs]
    slots = sweep.config.slots
    return script_of_sweep(
        config, folders, name=sweep.file.stem, folder=Path.cwd(), sweep=sweep.folder, slots=slots
    )


def submit_array(
    sweep: Sweep, runs: Sequence[Planned], environment: Mapping[str, str], now: datetime
) -> int:
    """Writes the recipe of each run into its folder, and submits them together. Returns the job's number."""
    text = array_script(sweep, runs)
    program("sbatch")
    refuse_queued(sweep.folder)
    for run in runs:
        resolved = resolve(sweep.recipe, run.arguments, environment=environment)
        write_recipe(
            find_run_directory(resolved, now),
            resolved,
            ["titanrun", "sweep", str(sweep.file), "--launch"],
        )
    return submit(write_script(text, sweep.folder))
