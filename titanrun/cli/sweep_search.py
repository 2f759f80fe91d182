"""The search half of `titanrun sweep`: draw, train, resume and compare the trials of a search."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from titanrun.cli.consent import request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.plots.bars import plot_bars_svg
from titanrun.cli.sweep import check_run_builds, print_sweep_results
from titanrun.cli.text_table import format_text_table
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.sweep.folder_lock import (
    SearchProcess,
    list_other_machines,
    lock_sweep_folder,
    wait_for_search_lock,
)
from titanrun.sweep.recipe_edits import compute_recipe_digest
from titanrun.sweep.search_points import (
    PointPlanner,
    build_planner,
    find_num_steps,
    validate_space,
)
from titanrun.sweep.search_pruners import build_pruner
from titanrun.sweep.search_runs import SearchRuns
from titanrun.sweep.search_space import OVERRIDES, RECIPE_CONTENT, describe_search
from titanrun.sweep.search_study import SearchStudy, open_study
from titanrun.sweep.sweep_file import SQLITE, Sweep, format_sweep_override
from titanrun.sweep.sweep_results import SweepRunResult
from titanrun.sweep.sweep_runner import LocalStarter, RunStarter, SweepRunner
from titanrun.sweep.trial_runs import load_trial_result
from titanrun.sweep.validate_points import PlannedRun, select_distinct_builds

MIN_IMPORTANCE_TRIALS = 2


def run_search(
    sweep: Sweep, overrides: Sequence[str], arguments: Sequence[str], options: Namespace
) -> int:
    """Train the remaining trials of a search, or show what it has found so far."""
    check_machines(sweep)
    planner = build_planner(sweep, overrides, get_environment())
    if options.list or options.table or options.importance:
        show_search(planner, options, has_overrides=bool(overrides))
        return 0
    samples, warnings = validate_space(planner)
    if not options.quiet:
        print_problems(warnings)
    request_consent([run.resolved for run in samples], options, ["sweep", *arguments])
    with lock_sweep_folder(sweep.folder, is_shared=True):
        starter = LocalStarter(sweep.recipe, sweep.config.slots)
        code = train_search(planner, samples, options, starter=starter)
        print_search_end(planner, options)
    return code


def print_search_end(planner: PointPlanner, options: Namespace) -> None:
    """Print what a search has found, also if its recipe was edited meanwhile."""
    study = open_search_study(planner, uncompared=(RECIPE_CONTENT,))
    print_sweep_results(load_results(planner, study), planner.sweep, options.format)
    print_importance_note(study, options)


def check_machines(sweep: Sweep) -> None:
    """Raise ProblemsFound if another machine works on a search in a database file."""
    others = list_other_machines(sweep.folder)
    if others and sweep.has_database:
        raise problem_error(
            "conflict",
            f"'{others[0]}' works on this search too, but a database file is for one machine",
            path=("search", "storage"),
            hint="remove storage, or name a journal file",
        )


def open_search_study(planner: PointPlanner, *, uncompared: Sequence[str] = ()) -> SearchStudy:
    """Open the study of a search, or begin it.

    `uncompared` are settings that may differ from those it was begun with.
    """
    sweep = planner.sweep
    settings = {
        **describe_search(planner.space, sweep.config, planner.common),
        RECIPE_CONTENT: compute_recipe_digest(sweep.recipe),
    }
    with wait_for_search_lock(sweep.folder):
        return open_study(
            planner.space,
            sweep.storage,
            name=sweep.folder.as_posix(),
            goal=sweep.config.goal,
            settings=settings,
            uncompared=uncompared,
        )


def train_search(
    planner: PointPlanner,
    samples: Sequence[PlannedRun],
    options: Namespace,
    *,
    starter: RunStarter,
    task: str = "",
) -> int:
    """Train the remaining trials and return the exit code.

    Before the first trial, the models of `samples` are built. A `task` of a Slurm array trains one
    trial under its name.
    """
    sweep = planner.sweep
    study = open_search_study(planner)
    rule = sweep.config.early_stopping
    if rule is not None and rule.is_pruner:
        num_steps = find_num_steps(planner) if rule.needs_num_steps else None
        study.use_pruner(build_pruner(rule, num_steps))
    if not study.load_trials():
        for run in select_distinct_builds(samples):
            check_run_builds(run)
    with open_search_process(sweep.folder, task) as process:
        source = SearchRuns(
            planner=planner,
            study=study,
            process=process,
            print_line=lambda text: print_note(options, text),
            is_single=bool(task),
        )
        limit = f"one in {task}" if task else f"{sweep.config.slots} at a time on this machine"
        print_note(options, f"{pluralize(planner.count, 'trial')} in {sweep.folder}, {limit}")
        runner = SweepRunner(
            config=sweep.config,
            folder=sweep.folder,
            source=source,
            starter=starter,
            print_line=lambda text: print_note(options, text),
        )
        return runner.run()


@contextmanager
def open_search_process(folder: Path, name: str) -> Iterator[SearchProcess]:
    """Show this process to the others of a search until it ends."""
    process = SearchProcess(folder, name)
    try:
        yield process
    finally:
        process.close()


def show_search(planner: PointPlanner, options: Namespace, *, has_overrides: bool) -> None:
    """Print the runs of a search so far, its results, or the importance of its values.

    Without overrides, the search has those that it was begun with.
    """
    sweep = planner.sweep
    storage = sweep.storage.removeprefix(SQLITE)
    if not sweep.folder.is_dir() or not Path(storage).is_file():
        print_note(options, f"the search in {sweep.folder} has no trials yet")
        return
    uncompared = (RECIPE_CONTENT, *(() if has_overrides else (OVERRIDES,)))
    study = open_search_study(planner, uncompared=uncompared)
    planner = replace(planner, common=study.overrides)
    if options.list:
        print_trial_runs(planner, study)
    elif options.table:
        print_sweep_results(load_results(planner, study), sweep, options.format)
    else:
        print_importance(study, options)


def print_trial_runs(planner: PointPlanner, study: SearchStudy) -> None:
    """Print a line per run, with its folder and the overrides for `titanrun train`."""
    for trial in study.load_trials():
        if trial.has_run and "same_as" not in trial.notes:
            point = planner.space.restore_point(trial.notes["point"])
            own = [format_sweep_override(path, node) for path, node in point.items()]
            folder = planner.sweep.folder / trial.notes["run"]
            print(f"{folder}  {' '.join([*planner.common, *own])}")


def load_results(planner: PointPlanner, study: SearchStudy) -> list[SweepRunResult]:
    """Load the results of each trial with a run of its own, so far."""
    return [
        load_trial_result(planner, trial)
        for trial in study.load_trials()
        if trial.has_run and "same_as" not in trial.notes
    ]


def compute_importance(study: SearchStudy) -> dict[str, float]:
    """Compute the importance of each path. Raise ProblemsFound with too few trials."""
    values = {trial.value for trial in study.load_trials() if trial.state == "complete"}
    if len(values) < MIN_IMPORTANCE_TRIALS:
        raise problem_error(
            "usage",
            f"importance needs {MIN_IMPORTANCE_TRIALS} finished trials with different values, "
            f"there are {len(values)}",
            hint="wait for more trials",
        )
    return study.compute_importance()


def print_importance(study: SearchStudy, options: Namespace) -> None:
    """Print the importance of each path, and draw it if a file is named."""
    shares = compute_importance(study)
    if options.out:
        Path(options.out).write_text(plot_bars_svg(shares, title="importance"), encoding="utf-8")
    if options.format == "json":
        sys.stdout.write(json.dumps(shares) + "\n")
        return
    rows = [["path", "importance"], *([path, f"{share:.3f}"] for path, share in shares.items())]
    if options.format == "csv":
        sys.stdout.write("".join(",".join(row) + "\n" for row in rows))
    else:
        sys.stdout.write(format_text_table(rows, right_aligned=(1,)))


def print_importance_note(study: SearchStudy, options: Namespace) -> None:
    """Print the importance of each path in one line, as soon as it can be computed."""
    values = {trial.value for trial in study.load_trials() if trial.state == "complete"}
    if len(values) >= MIN_IMPORTANCE_TRIALS:
        shares = study.compute_importance()
        said = ", ".join(f"{path} {share:.2f}" for path, share in shares.items())
        print_note(options, f"importance: {said}")
