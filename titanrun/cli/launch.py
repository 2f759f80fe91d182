"""`titanrun launch`: start a run as its launch section says, or print the job to submit."""

import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from titanrun.cli import train
from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import needs_consent, request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note, print_source_files
from titanrun.config.problems import problem_error
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.launch_env import get_environment
from titanrun.launch.slurm_launcher import FOLDER, build_run_script
from titanrun.launch.slurm_queue import (
    check_not_queued,
    follow_job,
    get_slurm_program,
    submit_job,
    write_job_script,
)
from titanrun.recipe.resolving.resolve import Resolved, resolve_recipe
from titanrun.recipe.resolving.resolve_elsewhere import resolve_for_elsewhere
from titanrun.recipe.rundir.run_directory import (
    RunDirectory,
    check_last_checkpoint,
    select_run_directory,
    write_recipe_files,
)
from titanrun.recipe.rundir.run_files import STATUS, read_json_or_empty

SUMMARY = (
    "Start a run where its launch section says: on this machine, or as a Slurm job. The resolved "
    "recipe is written into the run directory, and the job trains that. A submitted job is "
    "followed until it ends; Ctrl-C does not stop the job."
)
EXAMPLES = """\
  titanrun launch recipe.yaml --dry-run               the script that would be submitted
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
        help="only print what would be submitted; nothing is written, and what is missing on "
        "this machine are warnings",
    )
    parser.add_argument(
        "--no-follow", action="store_true", help="return as soon as the job is submitted"
    )
    parser.add_trust_option()
    parser.add_reporting_options()
    parser.allow_overrides()
    options = parser.parse_args(others)
    resolved = resolve_launch(options, overrides)
    config = resolved.run.launch
    if not isinstance(config, SlurmLaunchConfig):
        return train_locally(options, overrides)
    print_source_files(options, resolved.tree)
    if not options.dry_run:
        request_consent([resolved], options, ["launch", *arguments], submits=True)
    folder = resolved.recipe.dump_folder
    if folder is not None and not options.dry_run:
        check_not_queued(Path(folder))
    directory = select_run_directory(resolved, datetime.now().astimezone())
    if directory.state == "finished":
        check_last_checkpoint(directory, resolved.run)
        print_note(
            options,
            f"nothing to do: {train.format_progress(directory, resolved.run)} in {directory.path}",
        )
        return 0
    text = build_run_script(
        config,
        directory.path,
        name=str(resolved.run.name),
        folder=Path.cwd(),
        allows_code=needs_consent(resolved),
    )
    if options.dry_run:
        sys.stdout.write(text)
        return 0
    return submit_and_follow(directory, resolved, text, options)


def resolve_launch(options: Namespace, overrides: Sequence[str]) -> Resolved:
    """Return the run, and print its warnings unless `titanrun train` does."""
    if options.dry_run:
        resolved = resolve_for_elsewhere(options.recipe, overrides, environment=get_environment())
    else:
        resolved = resolve_recipe(
            options.recipe, overrides, environment=get_environment(), should_check_inputs=True
        )
    is_submitted = isinstance(resolved.run.launch, SlurmLaunchConfig)
    if resolved.warnings and not options.quiet and (is_submitted or options.dry_run):
        print_problems(resolved.warnings)
    return resolved


def train_locally(options: Namespace, overrides: Sequence[str]) -> int:
    """Run `titanrun train`, since the run is for this machine."""
    words = [
        options.recipe,
        *overrides,
        *(f"--{name}" for name in ("quiet", "verbose", "trust") if getattr(options, name)),
    ]
    if options.no_follow:
        raise problem_error(
            "usage",
            "--no-follow is not supported by launch: local, which trains in this process",
            path=("launch",),
            hint="omit --no-follow",
        )
    if options.dry_run:
        print(shlex.join(["titanrun", "train", *words]))
        return 0
    return train.run(words)


def submit_and_follow(
    directory: RunDirectory, resolved: Resolved, text: str, options: Namespace
) -> int:
    """Submit the job of a run and follow it."""
    get_slurm_program("sbatch")
    write_recipe_files(directory, resolved, ["titanrun", "launch", options.recipe])
    began = time.time()
    job = submit_job(write_job_script(text, directory.path))
    log = directory.path / FOLDER / f"job-{job}.log"
    print_note(
        options,
        f"job {job} trains {directory.path}; script: {log.with_name('job.sh')}, log: {log}",
    )
    if options.no_follow:
        return 0
    try:
        state = follow_job(job, log, lambda said: print_note(options, said))
    except KeyboardInterrupt:
        print_note(options, f"job {job} continues; scancel {job} cancels it")
        return 0
    status = read_json_or_empty(directory.path / STATUS)
    # a job that never started training leaves the log of the previous one
    told = status.get("exit_code") if status.get("heartbeat", 0) > began else None
    return told if isinstance(told, int) else state.exit_code or int(state.state != "COMPLETED")
