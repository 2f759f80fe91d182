"""`titanrun launch`: start a run as its launch section says, or print the job to submit."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath

from titanrun.cli import train
from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import ask_about_plugin_files, needs_consent, request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note, print_source_files
from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.exit_codes import EXIT_NOT_STARTED
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.launch.kubernetes.group_submission import GroupSubmission
from titanrun.launch.kubernetes.kubernetes_submission import (
    ATTACHED_FLAG,
    KubernetesSubmission,
)
from titanrun.launch.launch_env import get_environment
from titanrun.launch.skypilot.config import SkyPilotLaunchConfig
from titanrun.launch.skypilot.sky_submission import SkySubmission
from titanrun.launch.slurm_queue import check_not_queued
from titanrun.launch.slurm_submission import SlurmSubmission
from titanrun.launch.submission import Submission
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.dump_folder import find_lost_run_problems
from titanrun.recipe.resolving.read_recipe import find_plugin_files
from titanrun.recipe.resolving.resolve import Resolved, attach_origin
from titanrun.recipe.resolving.resolve_elsewhere import resolve_for_elsewhere, resolve_for_launch
from titanrun.recipe.rundir.run_directory import (
    RunDirectory,
    check_last_checkpoint,
    select_run_directory,
)

SUMMARY = (
    "Start a run where its launch section says: on this machine, on Slurm, on Kubernetes, or "
    "with SkyPilot. The job trains the resolved recipe. A submitted job is "
    "followed until it ends; Ctrl-C does not stop the job."
)
EXAMPLES = """\
  titanrun launch recipe.yaml --dry-run               what would be submitted
  titanrun launch recipe.yaml
  titanrun launch recipe.yaml dump_folder=runs/first  run again: resumes
  titanrun launch recipe.yaml launch.name=slurm launch.partition=h100 --no-follow"""


def run(arguments: list[str]) -> int:
    """Return the exit code of the run, 0 if it was only submitted."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser("launch", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="a recipe (.yaml or .toml), or the resolved.yaml of a run")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print what would be submitted; nothing is written, and files that are missing "
        "on this machine are warnings",
    )
    parser.add_argument(
        "--no-follow", action="store_true", help="return as soon as the job is submitted"
    )
    parser.add_argument(
        ATTACHED_FLAG,
        action="store_true",
        help="for Kubernetes: a signal to this command deletes the job, which lets it save, and a "
        "job of this run that is not over is followed; titanrun sweep does this",
    )
    parser.add_trust_option()
    parser.add_reporting_options()
    parser.allow_overrides()
    options = parser.parse_args(others)
    check_attached(options)
    ask_about_plugin_files()
    resolved = resolve_launch(options, overrides)
    if not resolved.run.launch.is_submitted:
        return train_locally(options, overrides)
    print_source_files(options, resolved.tree)
    if not options.dry_run:
        if isinstance(resolved.run.launch, SlurmLaunchConfig):
            # its nodes use this Python
            require_torch()
        request_consent([resolved], options, ["launch", *arguments], submits=True)
    submission = build_submission(resolved, options)
    if submission is None:
        return 0
    if options.dry_run:
        sys.stdout.write(submission.text)
        return 0
    if options.attached:
        return train_attached(submission, options)
    return submit_and_follow(submission, options)


def check_attached(options: Namespace) -> None:
    """Raise a problem if --attached stands beside an option that does not follow the job."""
    if options.attached and (options.dry_run or options.no_follow):
        other = "--dry-run" if options.dry_run else "--no-follow"
        raise problem_error(
            "usage",
            f"{ATTACHED_FLAG} follows the job, and {other} does not",
            hint="omit one of the two",
        )


def train_attached(submission: Submission, options: Namespace) -> int:
    """Train a run in a job that ends with this command.

    Return 1 if the cluster cannot be asked: that says nothing about the run.
    """
    if not isinstance(submission, KubernetesSubmission):
        raise problem_error(
            "usage",
            f"{ATTACHED_FLAG} is for a run that is one Job of Kubernetes",
            path=("launch",),
            hint="omit it",
        )
    try:
        return submission.train(lambda said: print_note(options, said))
    except ProblemsFound as found:
        print_problems(found.problems)
        return EXIT_NOT_STARTED


def resolve_launch(options: Namespace, overrides: Sequence[str]) -> Resolved:
    """Return the run, and print its warnings unless `titanrun train` does.

    Files that a job finds elsewhere may be missing here.
    """
    resolve = resolve_for_elsewhere if options.dry_run else resolve_for_launch
    resolved = resolve(options.recipe, overrides, environment=get_environment())
    launch = resolved.run.launch
    if resolved.warnings and not options.quiet and (launch.is_submitted or options.dry_run):
        print_problems(resolved.warnings)
    return resolved


def build_submission(resolved: Resolved, options: Namespace) -> Submission | None:
    """Build the job of a run, or return None if nothing is left to train."""
    config, allows_code = resolved.run.launch, needs_consent(resolved)
    if isinstance(config, SlurmLaunchConfig):
        directory = select_slurm_directory(resolved, options)
        command = ("titanrun", "launch", options.recipe)
        return (
            None
            if directory is None
            else SlurmSubmission(config, directory, resolved, command, allows_code)
        )
    lost = find_lost_run_problems(resolved.recipe, is_submitted=True)
    if lost:
        raise ProblemsFound(lost)
    check_needs_no_files(resolved)
    name = str(resolved.run.name)
    if isinstance(config, SkyPilotLaunchConfig):
        return build_sky_submission(config, resolved, name, allows_code=allows_code)
    assert isinstance(config, KubernetesLaunchConfig)
    # a rule requires it to lie in a volume
    folder = PurePosixPath(str(resolved.recipe.dump_folder))
    groups = resolved.run.fault_tolerance
    if groups.enable:
        return GroupSubmission(config, groups, name, resolved.text, folder, allows_code)
    return KubernetesSubmission(config, name, resolved.text, folder, allows_code)


def check_needs_no_files(resolved: Resolved) -> None:
    """Raise if the recipe needs plug-in files: only its text reaches such a job."""
    for file in find_plugin_files(resolved.tree):
        found = problem_error(
            "conflict",
            f"a job of {resolved.run.launch.name} does not get plug-in '{file.entry}'",
            path=file.code.path,
            hint="make it a package that the image installs, and list its name",
        )
        raise ProblemsFound([attach_origin(each, resolved.tree) for each in found.problems])


def build_sky_submission(
    config: SkyPilotLaunchConfig, resolved: Resolved, name: str, *, allows_code: bool
) -> SkySubmission:
    """Build the task of a run, whose checkpoints are at an address or in its run directory."""
    saving, written = resolved.run.checkpoint, resolved.recipe.dump_folder
    folder = None if written is None else PurePosixPath(str(written))
    has_address = config.nnodes == 1 and saving.enable and is_storage_path(saving.folder)
    storage = saving.folder if has_address else str(folder)
    return SkySubmission(
        config, name, resolved.text, folder, storage, get_environment(), allows_code
    )


def select_slurm_directory(resolved: Resolved, options: Namespace) -> RunDirectory | None:
    """Return the run directory of a Slurm job, or None if its run is finished."""
    folder = resolved.recipe.dump_folder
    if folder is not None and not options.dry_run:
        check_not_queued(Path(folder))
    directory = select_run_directory(resolved, datetime.now().astimezone())
    if directory.state != "finished":
        return directory
    check_last_checkpoint(directory, resolved.run)
    print_note(
        options,
        f"nothing to do: {train.format_progress(directory, resolved.run)} in {directory.path}",
    )
    return None


def train_locally(options: Namespace, overrides: Sequence[str]) -> int:
    """Run `titanrun train`, since the run is for this machine."""
    words = [
        options.recipe,
        *overrides,
        *(f"--{name}" for name in ("quiet", "verbose", "trust") if getattr(options, name)),
    ]
    for option in ("--no-follow", ATTACHED_FLAG):
        if getattr(options, option.removeprefix("--").replace("-", "_")):
            raise problem_error(
                "usage",
                f"{option} is not supported by launch: local, which trains in this process",
                path=("launch",),
                hint=f"omit {option}",
            )
    if options.dry_run:
        print(shlex.join(["titanrun", "train", *words]))
        return 0
    return train.run(words)


def submit_and_follow(submission: Submission, options: Namespace) -> int:
    """Submit the job of a run and follow it."""
    print_note(options, submission.submit())
    if options.no_follow:
        return 0
    try:
        return submission.follow(lambda said: print_note(options, said))
    except KeyboardInterrupt:
        print_note(options, f"the job continues; {submission.cancel_command} cancels it")
        return 0
