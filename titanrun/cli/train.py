"""`titanrun train`: resolve a recipe, open its run directory, start the worker."""

import shlex
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import ask_about_plugin_files, request_consent, uses_model_code
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.hub_datasets import record_recipe_datasets
from titanrun.cli.hub_models import CONFIG_ONLY, fetch_recipe_models
from titanrun.cli.messages import print_note, print_source_files
from titanrun.cli.stdin_argument import add_stdin_option, read_stdin_argument
from titanrun.cli.train_stages import check_stage_has_start, train_stages
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.group_launcher import start_replica_groups
from titanrun.launch.host_info import count_accelerators
from titanrun.launch.launch_env import (
    build_rank_environment,
    get_environment,
    get_rank_and_world_size,
    is_in_distributed_job,
    silence_workers,
)
from titanrun.launch.local_launcher import exec_worker
from titanrun.launch.multi_node import start_multi_node
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.comparing.resume_policy import format_resume_change
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.multi_stage import StageRequiredError
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.rundir.group_recipes import check_groups_agree, get_shared_folder
from titanrun.recipe.rundir.run_directory import (
    RunDirectory,
    check_last_checkpoint,
    create_run_directory,
    select_run_directory,
    write_run_directory,
)
from titanrun.recipe.rundir.run_files import RESOLVED
from titanrun.recipe.rundir.run_lock import hold_opening, is_in_use, join_run
from titanrun.recipe.rundir.start_undo import undo_start
from titanrun.runs.dead_starts import undo_dead_start
from titanrun.runs.known_runs import remember_run

EXAMPLES = """  titanrun train llama3_debug                                      a shipped recipe
  titanrun train recipes/llama3_debug.yaml
  titanrun train recipes/llama3_debug.yaml training.steps=50 optimizer.lr=1e-3
  titanrun train recipes/llama3_debug.yaml --nproc 4               four processes with FSDP
  titanrun train recipes/llama3_debug.yaml dump_folder=runs/first  run again: resumes
  titanrun train runs/first/checkpoint/step-10/resolved.yaml       rerun of the same run"""
NPROC_HELP = "worker processes, short for launch.nproc_per_node=N"


def run(arguments: list[str]) -> int:
    """Train and return the worker's exit code."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "train",
        "Train a recipe. All its problems are reported before anything is written.",
        EXAMPLES,
    )
    parser.add_argument(
        "recipe",
        help="a recipe (.yaml or .toml), the name of a shipped one, or the resolved.yaml of a run",
    )
    parser.add_argument("--nproc", type=int, metavar="N", help=NPROC_HELP)
    parser.add_trust_option()
    parser.add_reporting_options()
    add_stdin_option(parser)
    parser.allow_overrides()
    options = parser.parse_args(others)
    ask_about_plugin_files()
    [options.recipe] = read_stdin_argument([options.recipe], options)
    require_torch()
    changes = [
        *overrides,
        *([f"launch.nproc_per_node={options.nproc}"] if options.nproc is not None else []),
    ]
    if options.quiet:
        silence_workers()
    around = build_rank_environment()
    rank, ranks = get_rank_and_world_size(around)
    if rank > 0:
        # the first rank started by torchrun or srun resolves and writes for all
        exec_worker(["--join"], around)
    try:
        return launch_workers(options, changes, arguments, around)
    except ProblemsFound as found:
        if ranks == 1:
            raise
        # the other ranks wait for this one
        print_problems(found.problems)
        exec_worker(["--leave", str(found.exit_code)], around)


def launch_workers(
    options: Namespace, changes: list[str], arguments: list[str], around: Mapping[str, str]
) -> int:
    """Start the workers, or become the worker.

    `around` is the environment, including the ranks that torchrun or srun started.
    """
    ranks = get_rank_and_world_size(around)[1]
    try:
        fetch_models(options, changes, around)
        resolved = resolve_for_ranks(options.recipe, changes, around=around)
    except StageRequiredError as staged:
        return train_stages(
            options,
            staged,
            changes,
            arguments,
            around,
            resolve=partial(resolve_for_ranks, around=around),
        )
    check_stage_has_start(options.recipe, resolved)
    check_in_its_job(resolved, around)
    launch = resolved.run.launch
    if ranks == 1 and launch.num_nodes > 1 and resolved.run.comm.mode == "default":
        return train_with_other_nodes(resolved, arguments)
    print_source_files(options, resolved.tree)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    request_consent([resolved], options, ["train", *arguments])
    directory = prepare_run_directory(resolved, arguments, options)
    if directory.state == "finished" and ranks == 1:
        return 0
    if ranks > 1:
        exec_worker([str(directory.path / RESOLVED)], around)
    assert resolved.ranks is not None
    # simulated ranks share one process
    processes = resolved.ranks if resolved.run.comm.mode == "default" else 1
    return start_run(resolved.run, directory, processes)


def fetch_models(options: Namespace, changes: list[str], around: Mapping[str, str]) -> None:
    """Fetch the models that the recipe names on the Hub, after checking it by their sizes.

    Data that the recipe names there without a revision gets the commit of main.
    """
    record_recipe_datasets(options.recipe, changes, options)
    if fetch_recipe_models(options.recipe, changes, options, parts=CONFIG_ONLY):
        with suppress(StageRequiredError):
            resolve_for_ranks(options.recipe, changes, False, around=around)
    fetch_recipe_models(options.recipe, changes, options)


def start_run(run: Recipe, directory: RunDirectory, processes: int) -> int:
    """Start the workers of a run, or its replica groups, and return the exit code."""
    launch, resolved = run.launch, directory.path / RESOLVED
    code: int
    if run.fault_tolerance.enable:
        assert isinstance(launch, LocalLaunchConfig), "a rule checks it"
        code = start_replica_groups(
            launch,
            run.fault_tolerance,
            resolved=resolved,
            processes=processes,
            joined=directory.lock,
        )
    else:
        code = launch.load_builder()(launch, resolved=resolved, processes=processes)
    # groups on other machines may train on
    if run.fault_tolerance.replica_id is None:
        undo_start(directory.path)
    return code


def check_in_its_job(resolved: Resolved, around: Mapping[str, str]) -> None:
    """Raise a problem if the run is for a job of a queue and this process is not in one."""
    launch = resolved.run.launch
    if (
        launch.is_submitted
        and not is_in_distributed_job(around)
        and resolved.run.comm.mode == "default"
    ):
        hint = "use titanrun launch to submit it, or launch=local to train here"
        raise problem_error(
            "usage",
            f"this run requires a job of {launch.name}, but this process is not in one",
            path=("launch", "name"),
            hint=hint,
        )


def resolve_for_ranks(
    file: str, changes: list[str], check_inputs: bool = True, *, around: Mapping[str, str]
) -> Resolved:
    """Resolve the run for this machine, or for the ranks that torchrun or srun started."""
    ranks = get_rank_and_world_size(around)[1]
    return resolve_recipe(
        file,
        changes,
        environment=get_environment(),
        should_check_inputs=check_inputs,
        ranks=ranks if ranks > 1 else None,
        machine_ranks=max(1, count_accelerators(around)),
    )


def train_with_other_nodes(resolved: Resolved, arguments: list[str]) -> int:
    """Train together with other machines that run the same command.

    The first of all ranks opens the run directory.
    """
    launch, folder = resolved.run.launch, resolved.recipe.dump_folder
    if not isinstance(launch, LocalLaunchConfig) or resolved.ranks is None:
        raise problem_error(
            "usage", "this launcher does not support several machines", path=("launch",)
        )
    here = resolved.ranks // launch.nnodes
    return start_multi_node(
        launch, arguments, num_processes=here, run_dir=Path(folder) if folder else None
    )


def prepare_run_directory(
    resolved: Resolved, arguments: list[str], options: Namespace
) -> RunDirectory:
    """Return the run's directory with its metadata files; a finished run is unchanged.

    Replica groups on several machines open one directory.
    """
    config = resolved.run.fault_tolerance
    if not config.enable or config.replica_id is None:
        return open_run_directory(resolved, arguments, options)
    path = get_shared_folder(resolved)
    create_run_directory(path, resolved)
    with hold_opening(path):
        if not is_in_use(path):
            directory = open_run_directory(resolved, arguments, options)
            if directory.state == "finished":
                return directory
            # the next group that opens the directory joins this start
            return replace(directory, lock=join_run(path))
        check_groups_agree(path, resolved)
        lock = join_run(path)
    print_note(options, f"joining the other replica groups in: {path}")
    return RunDirectory(path, "unfinished", lock=lock)


def open_run_directory(
    resolved: Resolved, arguments: list[str], options: Namespace
) -> RunDirectory:
    """Select the run's directory and write its metadata files, unless the run is finished."""
    now = datetime.now().astimezone()
    undo_dead_start(resolved.recipe.dump_folder)
    directory = select_run_directory(resolved, now)
    if directory.state == "finished":
        check_last_checkpoint(directory, resolved.run)
        print_note(
            options,
            f"nothing to do: {format_progress(directory, resolved.run)} in {directory.path}",
        )
        print_note(options, format_longer_command(directory, resolved.run))
        return directory
    write_run_directory(
        directory,
        resolved,
        ["titanrun", "train", *arguments],
        now,
        environment=get_environment(),
        trusts_remote_code=uses_model_code(resolved),
    )
    remember_run(directory.path, resolved.run.name, get_environment())
    print_note(options, format_start_note(directory))
    for change in directory.resume_changes.reported_changes:
        print_note(options, f"  changed: {format_resume_change(change)}")
    return directory


def format_progress(directory: RunDirectory, run: Recipe) -> str:
    """Format the progress of a finished run: `step 20 of 20`, or `step 20, 3 epochs`.

    A run that finished before its last step had no more data.
    """
    training, done = run.training, directory.completed_step
    length = (
        f" of {training.steps}"
        if training.epochs is None
        else f", {pluralize(training.epochs, 'epoch')}"
    )
    steps = training.steps if training.epochs is None else None
    is_short = isinstance(steps, int) and done is not None and done < steps
    return f"step {done}{length}{', where its data ran out,' if is_short else ''}"


def format_longer_command(directory: RunDirectory, run: Recipe) -> str:
    """Format the command that trains a finished run for twice as long."""
    name = "steps" if run.training.epochs is None else "epochs"
    length = getattr(run.training, name)
    words = ["titanrun", "resume", str(directory.path), f"training.{name}={2 * length}"]
    return f"to train on, with a length of your choice: {shlex.join(words)}"


def format_start_note(directory: RunDirectory) -> str:
    """Format the note about the run directory: new, restarted or resumed."""
    if directory.state == "new":
        return f"run directory: {directory.path}"
    if directory.completed_step is None:
        return f"restarting in: {directory.path} (no checkpoint to resume from)"
    return f"resuming in: {directory.path}"
