"""`titanrun data build --slurm`: tokenize the parts of a recipe's data as an array of jobs."""

import sys
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.consent import needs_consent, request_consent
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_data_build import SlurmDataBuild
from titanrun.launch.slurm_launcher import FOLDER
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import attach_recipe_origin

SUBFOLDER = "slurm"
"""Folder of scripts and logs in the folder of tokenized data, with one for each name of a run."""


def add_slurm_options(parser: CommandParser) -> None:
    """Add the options of jobs that tokenize."""
    parser.add_argument(
        "--slurm",
        type=int,
        metavar="N",
        help="submit an array of N Slurm jobs, one for each part, and a job that finishes after "
        "them, with the partition and limits of launch",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="with --slurm: only print the batch scripts"
    )
    parser.add_trust_option()


def check_slurm_options(options: Namespace) -> None:
    """Raise a usage problem if --slurm stands beside options that it sets, or --dry-run alone."""
    if options.slurm is None:
        if options.dry_run:
            raise problem_error("usage", "--dry-run is an option of --slurm", hint="add --slurm N")
        return
    if options.slurm < 1:
        raise problem_error("usage", f"--slurm is {options.slurm}", hint="use 1 or more parts")
    others = {
        "--part": options.part is not None,
        "--finish": options.finish,
        "--repair": options.repair,
        "--pipeline": options.pipeline is not None,
    }
    given = [name for name, is_given in others.items() if is_given]
    if given:
        raise problem_error(
            "usage",
            f"--slurm submits all parts and the job that finishes, so that {given[0]} has no "
            "meaning",
            hint=f"omit {given[0]}",
        )
    check_workers(options)


def check_workers(options: Namespace) -> None:
    """Raise a usage problem if the number of processes is not positive."""
    if options.workers is not None and options.workers < 1:
        raise problem_error("usage", f"--workers is {options.workers}", hint="use 1 or more")


def submit_parts(options: Namespace, resolved: Resolved, arguments: list[str]) -> None:
    """Submit the jobs and print their numbers, or with --dry-run print their scripts.

    Raises:
        ProblemsFound: The recipe does not launch on Slurm, or Slurm rejects the jobs.
    """
    try:
        jobs = describe_jobs(options, resolved)
    except ProblemsFound as found:
        raise ProblemsFound(
            [attach_recipe_origin(problem, resolved) for problem in found.problems]
        ) from None
    if options.dry_run:
        sys.stdout.write(jobs.text)
        return
    require_torch()
    request_consent([resolved], options, ["data", "build", *arguments], submits=True)
    array, finish = jobs.submit()
    print(f"job {array} tokenizes {options.slurm} parts; job {finish} finishes after them")
    print(f"scripts and logs: {jobs.folder / FOLDER}")


def describe_jobs(options: Namespace, resolved: Resolved) -> SlurmDataBuild:
    """Return the jobs that tokenize the data of a recipe."""
    config, cache = resolved.run.launch, resolved.run.training.data_cache
    assert cache is not None, "checked when the options were parsed"
    if not isinstance(config, SlurmLaunchConfig):
        raise problem_error(
            "usage",
            f"--slurm needs the launch section of a Slurm job, and launch is '{config.name}'",
            path=("launch",),
            hint="add launch.name=slurm launch.partition=NAME launch.time_limit=12h",
        )
    name = str(resolved.run.name)
    return SlurmDataBuild(
        config=config,
        name=name,
        num_parts=options.slurm,
        num_workers=options.workers or config.cpus_per_task or 1,
        folder=Path(cache) / SUBFOLDER / name.replace("/", "-"),
        start_folder=Path.cwd(),
        resolved_text=resolved.text,
        allows_code=needs_consent(resolved),
    )
