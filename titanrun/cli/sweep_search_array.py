"""`titanrun sweep --launch` of a search: submission of its Slurm array, and a task of it.

Optuna is imported late: before the search begins, a dry run needs no Optuna.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from titanrun.cli.consent import needs_consent, request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.sweep_jobs import search_in_jobs
from titanrun.config.pluralize import pluralize
from titanrun.launch.launch_env import get_environment
from titanrun.launch.slurm_queue import (
    check_not_queued,
    get_slurm_program,
    submit_job,
    write_job_script,
)
from titanrun.launch.torch_requirement import require_torch
from titanrun.recipe.resolving.resolve_elsewhere import resolve_for_elsewhere, resolve_for_launch
from titanrun.recipe.rundir.late_files import wait_for_files
from titanrun.sweep.folder_lock import forget_search_processes, lock_sweep_folder
from titanrun.sweep.job_runs import uses_jobs
from titanrun.sweep.search_array import (
    TASK_PATTERN,
    SrunStarter,
    build_search_array,
    get_task_name,
)
from titanrun.sweep.search_points import PointPlanner, build_planner, validate_space
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.validate_sweep import check_search_packages


def submit_search(
    sweep: Sweep, overrides: Sequence[str], arguments: Sequence[str], options: Namespace
) -> int:
    """Submit the remaining trials of a search, or show what would be submitted.

    To Slurm as one array; to Kubernetes as a Job each.
    """
    resolve = resolve_for_elsewhere if options.dry_run else resolve_for_launch
    planner = build_planner(sweep, overrides, get_environment(), resolve=resolve)
    samples, warnings = validate_space(planner)
    if not options.quiet:
        print_problems(warnings)
    if uses_jobs(samples):
        return search_in_jobs(planner, samples, ["sweep", *arguments], options)
    allows_code = any(needs_consent(run.resolved) for run in samples)
    array = build_search_array(sweep, samples, overrides, allows_code=allows_code)
    if options.dry_run:
        num_tasks = count_tasks(planner)
        if num_tasks:
            sys.stdout.write(array.build_script(num_tasks))
        else:
            print_nothing_to_do(planner, options)
        return 0
    require_torch()
    resolved = [run.resolved for run in samples]
    request_consent(resolved, options, ["sweep", *arguments], submits=True)
    check_search_packages(planner.space)
    get_slurm_program("sbatch")
    with lock_sweep_folder(sweep.folder, is_shared=True):
        check_not_queued(sweep.folder)
        # the array before this one is over: what is left of its tasks are trials to go on with
        forget_search_processes(sweep.folder, TASK_PATTERN)
        begin_search(planner)
        num_tasks = count_tasks(planner)
        if not num_tasks:
            print_nothing_to_do(planner, options)
            return 0
        job = submit_job(write_job_script(array.build_script(num_tasks), sweep.folder))
    print_note(
        options,
        f"job {job} trains {pluralize(num_tasks, 'trial')} in {sweep.folder}; --table shows the "
        "results so far",
    )
    return 0


def print_nothing_to_do(planner: PointPlanner, options: Namespace) -> None:
    """Say that all trials have ended or are being trained."""
    print_note(
        options,
        f"nothing to do: {pluralize(planner.count, 'trial')} in {planner.sweep.folder} are "
        "finished or training",
    )


def begin_search(planner: PointPlanner) -> None:
    """Record the settings of the search, with which all tasks must agree."""
    from titanrun.cli.sweep_search import open_search_study

    open_search_study(planner)


def count_tasks(planner: PointPlanner) -> int:
    """Return the number of trials to draw, and of those that no process trains any more."""
    if not Path(planner.sweep.storage).is_file():
        return planner.count
    check_search_packages(planner.space)
    from titanrun.cli.sweep_search import open_search_study
    from titanrun.sweep.trial_runs import count_open_trials

    return count_open_trials(planner, open_search_study(planner))


def wait_for_journal(sweep: Sweep, options: Namespace) -> None:
    """Wait until this machine sees the journal that the submission of the array has begun.

    A task that does not see it would begin a search of its own.
    """
    from titanrun.sweep.search_study import has_settings

    journal = Path(sweep.storage)
    wait_for_files(
        lambda: has_settings(journal),
        journal.parent,
        f"the journal '{journal}'",
        print_line=lambda text: print_note(options, text),
    )


def train_array_task(sweep: Sweep, overrides: Sequence[str], options: Namespace) -> int:
    """Train one trial within a task of the array, and return its exit code."""
    environment = get_environment()
    name = get_task_name(environment)
    # the run asks for consent itself
    planner = build_planner(sweep, overrides, environment)
    check_search_packages(planner.space)
    from titanrun.cli.sweep_search import train_search

    starter = SrunStarter(sweep, environment, allows_code=options.trust)
    wait_for_journal(sweep, options)
    with lock_sweep_folder(sweep.folder, is_shared=True):
        return train_search(planner, [], options, starter=starter, task=name)
