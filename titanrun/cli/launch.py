"""`titanrun launch`: gives a run to what the recipe's launch section names, or shows exactly what would be given."""

import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from titanrun.cli import train
from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.guard import print_problems
from titanrun.cli.voice import detail_files, note
from titanrun.config.problems import fail
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.environment import environment
from titanrun.launch.slurm import FOLDER, script_of_run
from titanrun.launch.slurm_queue import follow, program, refuse_queued, submit, write_script
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.run_dir import RunDirectory, find_run_directory, write_recipe
from titanrun.recipe.run_files import STATUS, read_json

SUMMARY = (
    "Start a run where its launch section says: on this machine, or as a job of Slurm. The resolved recipe goes into the run directory, "
    "and the job trains that. What is submitted is followed until it ends; Ctrl-C leaves the job alone."
)
EXAMPLES = """  titanrun launch recipe.yaml --dry-run                  the script that would be submitted
  titanrun launch recipe.yaml
  titanrun launch recipe.yaml dump_folder=runs/first     again: goes on where it stopped
  titanrun launch recipe.yaml launch.name=slurm launch.partition=h100 --no-follow"""


def run(arguments: list[str]) -> int:
    """The exit code of the run; 0 where it was only submitted."""
    overrides, others = split_overrides(arguments)
    parser = Parser("launch", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="a recipe (.yaml or .toml), or the resolved.yaml of a run")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only print what would be submitted; nothing is written",
    )
    parser.add_argument(
        "--no-follow", action="store_true", help="return as soon as the job is submitted"
    )
    parser.takes_reporting()
    parser.takes_overrides()
    options = parser.parse_args(others)
    resolved = resolve(options.recipe, overrides, environment=environment(), check_inputs=True)
    config = resolved.run.launch
    if not isinstance(config, SlurmLaunchConfig):
        return here(options, overrides)
    detail_files(options, resolved.tree)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    folder = resolved.recipe.dump_folder
    if folder is not None and not options.dry_run:
        refuse_queued(Path(folder))
    directory = find_run_directory(resolved, datetime.now().astimezone())
    if directory.state == "finished":
        note(
            options,
            f"nothing to do: {train.done_text(directory, resolved.run)} in {directory.path}",
        )
        return 0
    text = script_of_run(config, directory.path, name=str(resolved.run.name), folder=Path.cwd())
    if options.dry_run:
        sys.stdout.write(text)
        return 0
    return submitted(directory, resolved, text, options)


def here(options: Namespace, overrides: Sequence[str]) -> int:
    """What `titanrun train` does, since the run is for this machine."""
    words = [
        options.recipe,
        *overrides,
        *(f"--{name}" for name in ("quiet", "verbose") if getattr(options, name)),
    ]
    if options.no_follow:
        raise fail(
            "usage",
            "launch: local trains in this process, which cannot leave it",
            path=("launch",),
            help="leave --no-follow out",
        )
    if options.dry_run:
        print(shlex.join(["titanrun", "train", *words]))
        return 0
    return train.run(words)


def submitted(directory: RunDirectory, resolved: Resolved, text: str, options: Namespace) -> int:
    """Submits the job of a run, and follows it."""
    program("sbatch")
    write_recipe(directory, resolved, ["titanrun", "launch", options.recipe])
    began = time.time()
    job = submit(write_script(text, directory.path))
    log = directory.path / FOLDER / f"job-{job}.log"
    note(
        options,
        f"job {job} trains {directory.path}; its script is {log.with_name('job.sh')}, what it says is in {log}",
    )
    if options.no_follow:
        return 0
    try:
        state = follow(job, log, lambda said: note(options, said))
    except KeyboardInterrupt:
        note(options, f"job {job} goes on by itself; scancel {job} ends it")
        return 0
    status = read_json(directory.path / STATUS)
    # a job that never came to train leaves the words of the one before it
    told = status.get("exit_code") if status.get("heartbeat", 0) > began else None
    return told if isinstance(told, int) else state.exit_code or int(state.state != "COMPLETED")
