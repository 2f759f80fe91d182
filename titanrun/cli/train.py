"""`titanrun train`: resolve a recipe, open its run directory, hand over to the worker."""

from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.guard import print_problems
from titanrun.cli.train_stages import refuse_stage_without_start, train_stages
from titanrun.cli.voice import detail_files, note
from titanrun.config.counted import counted
from titanrun.config.problems import ProblemsFound, fail
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.environment import (
    environment,
    is_in_job,
    joined_environment,
    quieten_workers,
    ranks_around,
)
from titanrun.launch.local import become_worker
from titanrun.launch.machine import accelerators
from titanrun.launch.nodes import start_with_others
from titanrun.recipe.drift import change_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.run_dir import RESOLVED, RunDirectory, find_run_directory, write_run
from titanrun.recipe.stages import HasStages

EXAMPLES = """  titanrun train recipes/llama3_debug.yaml
  titanrun train recipes/llama3_debug.yaml training.steps=50 optimizer.lr=1e-3
  titanrun train recipes/llama3_debug.yaml --nproc 4                     four processes on this machine, FSDP
  titanrun train recipes/llama3_debug.yaml dump_folder=runs/first        again: goes on where it stopped
  titanrun train runs/first/checkpoint/step-10/resolved.yaml             the same run once more"""


def run(arguments: list[str]) -> int:
    """Train; the worker's exit code is the command's."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "train",
        "Train a recipe. Everything wrong with it is said before anything is written.",
        EXAMPLES,
    )
    parser.add_argument("recipe", help="a recipe (.yaml or .toml), or the resolved.yaml of a run")
    parser.add_argument(
        "--nproc", type=int, metavar="N", help="worker processes, short for launch.nproc_per_node=N"
    )
    parser.takes_trust()
    parser.takes_reporting()
    parser.takes_overrides()
    options = parser.parse_args(others)
    changes = [
        *overrides,
        *([f"launch.nproc_per_node={options.nproc}"] if options.nproc is not None else []),
    ]
    if options.quiet:
        quieten_workers()
    around = joined_environment()
    rank, ranks = ranks_around(around)
    if rank > 0:
        # the first of the ranks that torchrun or srun started resolves and writes for all
        become_worker(["--join"], around)
    try:
        return trained(options, changes, arguments, around)
    except ProblemsFound as found:
        if ranks == 1:
            raise
        # the other ranks wait for this one
        print_problems(found.problems)
        become_worker(["--leave", str(found.exit_code)], around)


def trained(
    options: Namespace, changes: list[str], arguments: list[str], around: Mapping[str, str]
) -> int:
    """Starts what trains, or becomes it; `around` is the environment, with the ranks that torchrun or srun started."""
    ranks = ranks_around(around)[1]
    try:
        resolved = resolved_for(options.recipe, changes, around=around)
    except HasStages as staged:
        return train_stages(
            options,
            staged,
            changes,
            arguments,
            around,
            resolve=partial(resolved_for, around=around),
        )
    refuse_stage_without_start(options.recipe, resolved)
    launch = resolved.run.launch
    if launch.is_submitted and not is_in_job(around) and resolved.run.comm.mode == "default":
        help = "titanrun launch submits it; launch=local trains here"
        raise fail(
            "usage",
            f"this run is for {launch.name}, and here is no job of it",
            path=("launch", "name"),
            help=help,
        )  # type: ignore[attr-defined]
    if ranks == 1 and launch.nodes > 1 and resolved.run.comm.mode == "default":
        return with_other_nodes(resolved, arguments)
    detail_files(options, resolved.tree)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    directory = opened(resolved, arguments, options)
    if directory.state == "finished" and ranks == 1:
        return 0
    if ranks > 1:
        become_worker([str(directory.path / RESOLVED)], around)
    assert resolved.ranks is not None
    # simulated ranks are all in one process
    processes = resolved.ranks if resolved.run.comm.mode == "default" else 1
    code: int = launch.builder()(launch, resolved=directory.path / RESOLVED, processes=processes)
    return code


def resolved_for(
    file: str, changes: list[str], check_inputs: bool = True, *, around: Mapping[str, str]
) -> Resolved:
    """The run, as this machine, or the ranks that torchrun or srun started, are to train it."""
    ranks = ranks_around(around)[1]
    return resolve(
        file,
        changes,
        environment=environment(),
        check_inputs=check_inputs,
        ranks=ranks if ranks > 1 else None,
        machine_ranks=max(1, accelerators(around)),
    )


def with_other_nodes(resolved: Resolved, arguments: list[str]) -> int:
    """Trains on this machine together with others, on which the same command is started; the first of all ranks opens the run."""
    launch, folder = resolved.run.launch, resolved.recipe.dump_folder
    if not isinstance(launch, LocalLaunchConfig) or resolved.ranks is None:
        raise fail("usage", "this launcher starts nothing on several machines", path=("launch",))
    here = resolved.ranks // launch.nnodes
    return start_with_others(
        launch, arguments, processes=here, run_dir=Path(folder) if folder else None
    )


def opened(resolved: Resolved, arguments: list[str], options: Namespace) -> RunDirectory:
    """The run's directory, with the files that say what runs; one that is finished is left as it is."""
    now = datetime.now().astimezone()
    directory = find_run_directory(resolved, now)
    if directory.state == "finished":
        note(options, f"nothing to do: {done_text(directory, resolved.run)} in {directory.path}")
        return directory
    write_run(
        directory,
        resolved,
        ["titanrun", "train", *arguments],
        now,
        environment=environment(),
        trusts_remote_code=options.trust_remote_code,
    )
    note(options, announcement(directory))
    for change in directory.drift.reported:
        note(options, f"  changed: {change_text(change)}")
    return directory


def done_text(directory: RunDirectory, run: Recipe) -> str:
    """How far a finished run is: `step 20 of 20`, or `step 20, 3 epochs`."""
    training = run.training
    length = (
        f" of {training.steps}"
        if training.epochs is None
        else f", {counted(training.epochs, 'epoch')}"
    )
    return f"step {directory.done}{length}"


def announcement(directory: RunDirectory) -> str:
    """Where the run is, and whether it begins."""
    if directory.state == "new":
        return f"run directory: {directory.path}"
    if directory.done is None:
        return f"starting again in: {directory.path} (it holds no checkpoint to go on from)"
    return f"going on in: {directory.path}"
