"""A run as a job of Slurm: a batch script that a person can read, and what the job does where it runs.

The script starts `titanrun resume` once for each rank, through srun; they join each other by what stands in their environment. Slurm sends
them SIGUSR1 before the time limit and SIGTERM when the job has to go: they save and exit with 75, and the script puts the job back.
"""

import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.config.units import seconds
from titanrun.launch.config import LaunchConfig, SlurmLaunchConfig
from titanrun.launch.environment import environment
from titanrun.launch.local import become_worker

# in a run directory, or a sweep's: the script, the job's number and what the job says
FOLDER = "launch"
SCRIPT = "job.sh"
MIB = 2**20
BODY = """
# where the ranks meet
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

# the ranks are told to save, and this script waits until they have
trap : TERM USR1

{start}
code=$?
"""
ONE_RUN = "srun --wait=60 {python} -m titanrun resume {run}"
MANY_RUNS = """runs=(
{runs}
)
srun --wait=60 {python} -m titanrun resume "${{runs[$SLURM_ARRAY_TASK_ID]}}\""""
REQUEUE = """
# 75: saved and stopped before its end. A job that somebody cancelled does not run any more, and stays away
if [ "$code" -eq 75 ] && [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
"""


def start(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """The worker of a job that has one rank takes the place of this process; `titanrun launch` is what submits jobs."""
    assert isinstance(config, SlurmLaunchConfig)
    if processes != 1:
        raise fail(
            "usage",
            f"srun starts the {processes} ranks of this run, and has not",
            path=("launch",),
            help="use titanrun launch",
        )
    become_worker([str(resolved)], environment())


def script_of_run(config: SlurmLaunchConfig, run: Path, *, name: str, folder: Path) -> str:
    """The batch script of one run, which is in `folder` when it begins; `name` is the job's."""
    start = ONE_RUN.format(python=shlex.quote(sys.executable), run=shlex.quote(str(run)))
    return script(
        config, directives(config, name, folder, output=run / FOLDER / "job-%j.log"), start
    )


def script_of_sweep(
    config: SlurmLaunchConfig,
    runs: Sequence[Path],
    *,
    name: str,
    folder: Path,
    sweep: Path,
    slots: int,
) -> str:
    """The batch script of an array with a task for each run, of which `slots` train at the same time."""
    listed = "\n".join(f"    {shlex.quote(str(run))}" for run in runs)
    start = MANY_RUNS.format(python=shlex.quote(sys.executable), runs=listed)
    array = f"--array=0-{len(runs) - 1}%{slots}"
    return script(
        config,
        [*directives(config, name, folder, output=sweep / FOLDER / "job-%A_%a.log"), array],
        start,
    )


def script(config: SlurmLaunchConfig, lines: Sequence[str], start: str) -> str:
    """What sbatch is given."""
    head = [
        "#!/bin/bash",
        "# written by titanrun launch",
        *(f"#SBATCH {line}" for line in (*lines, *config.options)),
        "",
        *config.setup,
    ]
    end = (REQUEUE if config.requeue else "") + 'exit "$code"\n'
    return "\n".join(head) + BODY.format(start=start) + end


def directives(config: SlurmLaunchConfig, name: str, folder: Path, *, output: Path) -> list[str]:
    """The options of sbatch."""
    return [
        f"--job-name={shlex.quote(name)}",
        f"--chdir={shlex.quote(str(folder))}",
        f"--output={shlex.quote(str(folder / output))}",
        "--open-mode=append",
        f"--nodes={config.nnodes}",
        f"--ntasks-per-node={config.nproc_per_node}",
        *optional(config),
        f"--signal=USR1@{config.save_seconds}",
        "--requeue" if config.requeue else "--no-requeue",
    ]


def optional(config: SlurmLaunchConfig) -> Iterator[str]:
    """The options that the recipe says something about."""
    limit = None if config.time_limit is None else clock(seconds(config.time_limit))
    memory = None if config.memory is None else f"{math.ceil(config.memory / MIB)}M"
    asked = {
        "gpus-per-node": config.gpus_per_node,
        "cpus-per-task": config.cpus_per_task,
        "mem": memory,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "time": limit,
    }
    yield from (
        f"--{option}={shlex.quote(str(value))}"
        for option, value in asked.items()
        if value is not None
    )


def clock(duration: float) -> str:
    """Seconds as Slurm writes a limit: `26:30:00`."""
    whole = math.ceil(duration)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
