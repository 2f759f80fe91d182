"""`titanrun sweep --launch` on Kubernetes: a Job for each run, `slots` at a time."""

import sys
from argparse import Namespace
from collections.abc import Sequence

from titanrun.cli.consent import needs_consent, request_consent
from titanrun.cli.launch import check_needs_no_files
from titanrun.cli.messages import print_note
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.launch.kubernetes.config import KubernetesLaunchConfig
from titanrun.sweep.folder_lock import lock_sweep_folder
from titanrun.sweep.job_runs import (
    JobStarter,
    build_run_job,
    check_runs_fit_jobs,
    check_sees_volume,
)
from titanrun.sweep.search_points import PointPlanner
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.validate_points import PlannedRun
from titanrun.sweep.validate_sweep import check_search_packages


def check_jobs(sweep: Sweep, runs: Sequence[PlannedRun], options: Namespace) -> None:
    """Raise ProblemsFound if the runs cannot be a Job each, or be followed from here."""
    check_runs_fit_jobs(sweep, runs)
    for run in runs:
        check_needs_no_files(run.resolved)
    if not options.dry_run:
        check_sees_volume(sweep, runs)


def build_starter(sweep: Sweep, runs: Sequence[PlannedRun]) -> JobStarter:
    """Build the starter of the runs, whose code the user has allowed."""
    return JobStarter(sweep.recipe, any(needs_consent(run.resolved) for run in runs))


def print_jobs(runs: Sequence[PlannedRun]) -> None:
    """Print the objects of these runs."""
    for run in runs:
        submission = build_run_job(run, allows_code=needs_consent(run.resolved))
        sys.stdout.write(submission.text)


def has_queue(run: PlannedRun) -> bool:
    """Return whether Kueue decides when the Job of a run starts."""
    config = run.resolved.run.launch
    return isinstance(config, KubernetesLaunchConfig) and config.queue is not None


def submit_to_queue(sweep: Sweep, runs: Sequence[PlannedRun], options: Namespace) -> int:
    """Submit the Jobs of all runs, which wait in the queue of the cluster."""
    if sweep.config.early_stopping is not None:
        raise problem_error(
            "usage",
            "early_stopping is not supported with launch.queue: no process monitors the runs",
            path=("early_stopping",),
            hint="remove early_stopping, or launch.queue",
        )
    submitted = 0
    for run in runs:
        submission = build_run_job(run, allows_code=needs_consent(run.resolved))
        if submission.is_alive():
            print_note(options, f"{run.name}: job {submission.name} is not over, skipped")
            continue
        submission.submit()
        print_note(options, f"{run.name}: job {submission.name}")
        submitted += 1
    print_note(
        options,
        f"{pluralize(submitted, 'job')} submitted; --table shows the results so far in "
        f"{sweep.folder}",
    )
    return 0


def search_in_jobs(
    planner: PointPlanner,
    samples: Sequence[PlannedRun],
    arguments: Sequence[str],
    options: Namespace,
) -> int:
    """Train the remaining trials of a search in Jobs, or show the Job of a trial."""
    sweep = planner.sweep
    check_jobs(sweep, samples, options)
    if options.dry_run:
        print_jobs(samples[:1])
        print_note(
            options,
            f"this is the Job of one point; the values of {pluralize(planner.count, 'trial')} are "
            "sampled one after another",
        )
        return 0
    request_consent([run.resolved for run in samples], options, arguments, submits=True)
    check_search_packages(planner.space)
    from titanrun.cli.sweep_search import print_search_end, train_search

    with lock_sweep_folder(sweep.folder, is_shared=True):
        starter = build_starter(sweep, samples)
        code = train_search(planner, [], options, starter=starter)
        print_search_end(planner, options)
    return code
