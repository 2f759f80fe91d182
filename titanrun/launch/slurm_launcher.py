"""A run as a Slurm job: a readable batch script, and the job's start on its nodes.

The script starts `titanrun resume` once per rank, through srun; the ranks join each other by their
environment. Slurm sends them SIGUSR1 before the time limit and SIGTERM at preemption: they save and
exit with 75, and the script requeues the job.
"""

import math
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from titanrun.config.control_characters import CONTROL_CHARACTER, escape_line
from titanrun.config.problems import problem_error
from titanrun.config.trust import TRUST_FLAG
from titanrun.config.units import duration_to_seconds
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.launch.config import LaunchConfig, SlurmLaunchConfig
from titanrun.launch.launch_env import get_environment
from titanrun.launch.local_launcher import exec_worker
from titanrun.launch.slurm_groups import KEEP_OPTION, build_group_steps

# files in the directory of a run or a sweep: the script, the job number and the job's output
FOLDER = "launch"
SCRIPT = "job.sh"
ARRAY_LOG = "job-%A_%a.log"
MIB = 2**20
BODY = """
# the ranks are signaled to save, and this script waits until they have
trap : TERM USR1

{start}
code=$?
"""
MEETING = """
# rendezvous of the ranks
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
"""
ONE_RUN = "srun --wait=60 {python} -m titanrun resume {run}{trust}"
MANY_RUNS = """runs=(
{runs}
)
srun --wait=60 {python} -m titanrun resume "${{runs[$SLURM_ARRAY_TASK_ID]}}"{trust}"""
ONE_TRIAL = """# one trial: that of this task before it was requeued, a dead task's, or a new one
{command}"""
REQUEUE = """
# 75: saved and stopped before its end. A canceled job is not RUNNING any more and is not requeued
if [ "$code" -eq 75 ] &&
    [ "$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
    scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
"""


def start_slurm_rank(config: LaunchConfig, *, resolved: Path, processes: int) -> int:
    """Replace this process by the worker of a job with one rank.

    `titanrun launch` submits jobs.
    """
    assert isinstance(config, SlurmLaunchConfig)
    if processes != 1:
        raise problem_error(
            "usage",
            f"the {processes} ranks of this run must be started by srun",
            path=("launch",),
            hint="use titanrun launch",
        )
    exec_worker([str(resolved)], get_environment())


def build_run_script(
    config: SlurmLaunchConfig,
    run: Path,
    *,
    name: str,
    folder: Path,
    groups: FaultToleranceConfig | None = None,
    allows_code: bool = False,
) -> str:
    """Build the batch script of one run.

    Args:
        config: the launch section.
        run: the run directory.
        name: the job name.
        folder: where the script starts.
        groups: the replica groups of the run, each on a node of its own. None: there are none.
        allows_code: whether the user allowed code that the recipe names. A node may have another
            home folder than the machine where that is remembered.
    """
    output = run / FOLDER / "job-%j.log"
    if groups is not None and groups.enable:
        options = build_sbatch_options(
            config, name, folder, output=output, num_nodes=groups.group_size
        )
        steps = build_group_steps(config, groups, run, allows_code=allows_code)
        return format_batch_script(config, [*options, KEEP_OPTION], steps, meeting="")
    start = ONE_RUN.format(
        python=shlex.quote(sys.executable),
        run=shlex.quote(str(run)),
        trust=f" {TRUST_FLAG}" if allows_code else "",
    )
    options = build_sbatch_options(config, name, folder, output=output)
    return format_batch_script(config, options, start)


def build_sweep_script(
    config: SlurmLaunchConfig,
    runs: Sequence[Path],
    *,
    name: str,
    folder: Path,
    sweep: Path,
    slots: int,
    allows_code: bool = False,
) -> str:
    """Build the batch script of an array with one task per run, at most `slots` at a time."""
    listed = "\n".join(f"    {shlex.quote(str(run))}" for run in runs)
    start = MANY_RUNS.format(
        python=shlex.quote(sys.executable),
        runs=listed,
        trust=f" {TRUST_FLAG}" if allows_code else "",
    )
    options = build_sbatch_options(config, name, folder, output=sweep / FOLDER / ARRAY_LOG)
    array = f"--array=0-{len(runs) - 1}%{slots}"
    return format_batch_script(config, [*options, array], start)


def build_search_script(
    config: SlurmLaunchConfig,
    command: Sequence[str],
    *,
    num_tasks: int,
    name: str,
    folder: Path,
    sweep: Path,
    slots: int,
) -> str:
    """Build the batch script of an array whose tasks train one trial each, by `command`."""
    options = build_sbatch_options(config, name, folder, output=sweep / FOLDER / ARRAY_LOG)
    array = f"--array=0-{num_tasks - 1}%{slots}"
    return format_batch_script(
        config, [*options, array], ONE_TRIAL.format(command=shlex.join(command))
    )


def format_batch_script(
    config: SlurmLaunchConfig,
    sbatch_options: Sequence[str],
    start_command: str,
    *,
    meeting: str = MEETING,
) -> str:
    """Format the input of sbatch. `meeting` tells the ranks where they find each other."""
    head = [
        "#!/bin/bash",
        "# written by titanrun launch",
        *(f"#SBATCH {check_one_line(line)}" for line in (*sbatch_options, *config.options)),
        "",
        *config.setup,
    ]
    end = (REQUEUE if config.requeue else "") + 'exit "$code"\n'
    return "\n".join(head) + meeting + BODY.format(start=start_command) + end


def check_one_line(option: str) -> str:
    """Return an option of sbatch.

    Raises:
        ProblemsFound: If it has a control character. A line break would end the option, and bash
            would run the rest.
    """
    if CONTROL_CHARACTER.search(option):
        raise problem_error(
            "usage",
            f"a batch script cannot contain {escape_line(option)!r}: it has a control character",
            path=("launch",),
            hint="rename the file or folder",
        )
    return option


def escape_sbatch_pattern(folder: Path) -> str:
    """Return a folder with a slash, in which sbatch replaces nothing: `%` begins a pattern."""
    return f"{folder}/".replace("%", "%%")


def build_sbatch_options(
    config: SlurmLaunchConfig,
    name: str,
    folder: Path,
    *,
    output: Path,
    num_nodes: int | None = None,
) -> list[str]:
    """Build the options of sbatch. `num_nodes` of None are those of the recipe."""
    return [
        f"--job-name={shlex.quote(name)}",
        f"--chdir={shlex.quote(str(folder))}",
        f"--output={shlex.quote(escape_sbatch_pattern(folder / output.parent) + output.name)}",
        "--open-mode=append",
        f"--nodes={num_nodes or config.nnodes}",
        f"--ntasks-per-node={config.nproc_per_node}",
        *iter_optional_sbatch_options(config),
        f"--signal=USR1@{config.save_seconds}",
        "--requeue" if config.requeue else "--no-requeue",
    ]


def iter_optional_sbatch_options(
    config: SlurmLaunchConfig, *, omit: Collection[str] = ()
) -> Iterator[str]:
    """Yield the sbatch options that the recipe sets, but for those named in `omit`."""
    limit = (
        None
        if config.time_limit is None
        else format_time_limit(duration_to_seconds(config.time_limit))
    )
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
        if value is not None and option not in omit
    )


def format_time_limit(duration: float) -> str:
    """Format seconds as a Slurm time limit: `26:30:00`."""
    whole = math.ceil(duration)
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
