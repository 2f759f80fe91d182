"""`titanrun sweep`: validate, run, resume and compare the runs of a sweep file."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.consent import ask_about_plugin_files, needs_consent, request_consent
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.sweep_jobs import (
    build_starter,
    check_jobs,
    has_queue,
    print_jobs,
    submit_to_queue,
)
from titanrun.cli.sweep_search_array import submit_search, train_array_task
from titanrun.cli.terminal import get_terminal_width
from titanrun.cli.text_table import format_text_table
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_query import find_build_problems
from titanrun.recipe.resolving.resolve_elsewhere import resolve_for_elsewhere, resolve_for_launch
from titanrun.sweep.folder_lock import lock_sweep_folder
from titanrun.sweep.job_runs import uses_jobs
from titanrun.sweep.recipe_edits import check_same_recipes, is_recipe_edited
from titanrun.sweep.run_sources import (
    FixedRuns,
    load_early_stops,
    load_overrides,
    write_overrides,
)
from titanrun.sweep.search_array import TASK_FLAG
from titanrun.sweep.slurm_array import build_array_script, get_unfinished_runs, submit_array
from titanrun.sweep.sweep_file import Sweep, read_sweep
from titanrun.sweep.sweep_results import (
    SweepRunResult,
    build_result_rows,
    find_missing_metric,
    get_sweep_run_state,
    load_sweep_result,
    sweep_result_to_dict,
)
from titanrun.sweep.sweep_runner import LocalStarter, RunStarter, SweepRunner
from titanrun.sweep.validate_points import (
    PlannedRun,
    Resolver,
    resolve_here,
    select_distinct_builds,
    validate_points,
)
from titanrun.sweep.validate_sweep import check_search_packages

SUMMARY = (
    "Train a recipe with every combination of the values in a sweep file. All runs are validated "
    "before the first one starts. Run again, it skips finished runs and resumes the rest."
)
EXAMPLES = """  titanrun sweep sweep.yaml --list             the runs and their changes
  titanrun sweep sweep.yaml
  titanrun sweep sweep.yaml training.steps=50  a change for all runs
  titanrun sweep sweep.yaml --launch           on Slurm or Kubernetes, by launch in the recipe
  titanrun sweep sweep.yaml --table            results so far, best first
  titanrun sweep sweep.yaml --table --format csv > results.csv
  titanrun sweep search.yaml --importance      which values of a search matter"""


def run(arguments: list[str]) -> int:
    """Return 0 if all runs have ended normally.

    Else return the exit code of the first that failed, or 75 after a signal.
    """
    overrides, others = split_overrides(arguments)
    parser = CommandParser("sweep", SUMMARY, EXAMPLES)
    parser.add_argument(
        "sweep",
        metavar="sweep",
        help="a sweep file (.yaml or .toml): recipe, and grid, zip, list, random or search",
    )
    add_sweep_options(parser)
    parser.add_trust_option()
    parser.allow_overrides()
    options = parser.parse_args(others)
    ask_about_plugin_files()
    sweep = read_sweep(Path(options.sweep))
    check_search_options(sweep, options)
    if not (
        options.list or options.dry_run or options.table or options.importance or options.launch
    ):
        require_torch()
    if sweep.search is not None:
        return start_search(sweep, overrides, arguments, options)
    if options.table and not overrides:
        overrides = load_overrides(sweep.folder)
    resolve = select_resolver(options)
    runs, warnings = validate_points(sweep, overrides, get_environment(), resolve=resolve)
    if warnings and not options.quiet and not options.table:
        print_problems(warnings)
    if options.list:
        print_sweep_runs(runs)
        return 0
    if not options.table:
        check_same_recipes(sweep, runs)
    if not (options.dry_run or options.table):
        planned = [run.resolved for run in runs]
        request_consent(planned, options, ["sweep", *arguments], submits=options.launch)
    if options.launch or options.dry_run:
        return submit_sweep(sweep, runs, overrides, options)
    code = 0
    with nullcontext() if options.table else lock_sweep_folder(sweep.folder):
        if not options.table:
            write_overrides(sweep.folder, overrides)
            code = train_sweep(sweep, runs, options)
        print_sweep_results(load_sweep_results(sweep, runs), sweep, options.format)
    return code


def select_resolver(options: Namespace) -> Resolver:
    """Return the function that resolves a recipe for where its run trains."""
    if options.dry_run:
        return resolve_for_elsewhere
    return resolve_for_launch if options.launch else resolve_here


def start_search(
    sweep: Sweep, overrides: Sequence[str], arguments: Sequence[str], options: Namespace
) -> int:
    """Do what the options ask for with a search. Optuna is imported where it is needed."""
    if options.launch or options.dry_run:
        return submit_search(sweep, overrides, arguments, options)
    if options.array_task:
        return train_array_task(sweep, overrides, options)
    assert sweep.search is not None
    check_search_packages(sweep.search)
    from titanrun.cli.sweep_search import run_search

    return run_search(sweep, overrides, arguments, options)


def add_sweep_options(parser: CommandParser) -> None:
    """Add what to do with the runs, and the format of the table."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--list",
        action="store_true",
        help="only print the changes of each run, as arguments of titanrun train, and its state "
        "once it was started",
    )
    what.add_argument(
        "--launch",
        action="store_true",
        help="submit the remaining runs, or trials of a search, `slots` at a time: to Slurm as one "
        "array, to Kubernetes as a Job each, which this command follows",
    )
    what.add_argument(
        "--dry-run", action="store_true", help="only print what --launch would submit"
    )
    what.add_argument("--table", action="store_true", help="only show the results so far")
    what.add_argument(
        "--importance",
        action="store_true",
        help="of a search: only show how much of the metric's spread each value explains",
    )
    parser.add_format_option("format of the table", choices=("text", "csv", "json"))
    parser.add_argument(
        TASK_FLAG,
        action="store_true",
        help="of a search: train one trial in a task of a Slurm array, as the script of --launch "
        "does",
    )
    parser.add_argument("--out", help="with --importance: draw it too, in a file .svg")


def check_search_options(sweep: Sweep, options: Namespace) -> None:
    """Raise ProblemsFound for options of a search without one, and --out without --importance."""
    if options.array_task and sweep.search is None:
        message = f"{TASK_FLAG} needs a search: this sweep has no section search"
        raise problem_error("usage", message, hint="use --launch")
    names = ("list", "launch", "dry_run", "table", "importance")
    if options.array_task and any(getattr(options, name) for name in names):
        raise problem_error("usage", f"{TASK_FLAG} trains, and excludes the other options")
    if options.importance and sweep.search is None:
        message = "--importance needs a search: this sweep has no section search"
        raise problem_error("usage", message, hint="see --table")
    if options.out and not options.importance:
        raise problem_error("usage", "--out is for --importance", hint="add --importance")
    if options.out and Path(options.out).suffix != ".svg":
        raise problem_error(
            "usage", f"'{options.out}' is not an SVG file", hint="use a name that ends in .svg"
        )


def print_sweep_runs(runs: Sequence[PlannedRun]) -> None:
    """Print a line per run, with its folder and the overrides for `titanrun train`.

    A run that was started has its state at the end, which a shell takes for a comment.
    """
    for run in runs:
        state = get_sweep_run_state(run.folder)
        mark = "" if state == "waiting" else f"  # {state}"
        print(f"{run.folder}  {' '.join(run.overrides)}{mark}")


def train_sweep(sweep: Sweep, runs: Sequence[PlannedRun], options: Namespace) -> int:
    """Train the remaining runs of the sweep on this machine and return the exit code."""
    for run in select_distinct_builds(
        [run for run in runs if get_sweep_run_state(run.folder) == "waiting"]
    ):
        check_run_builds(run)
    return start_runs(sweep, runs, options, LocalStarter(sweep.recipe, sweep.config.slots))


def start_runs(
    sweep: Sweep, runs: Sequence[PlannedRun], options: Namespace, starter: RunStarter
) -> int:
    """Start the remaining runs, `slots` at a time, and return the exit code."""
    print_note(
        options, f"{pluralize(len(runs), 'run')} in {sweep.folder}, {sweep.config.slots} at a time"
    )

    def print_line(text: str) -> None:
        print_note(options, text)

    runner = SweepRunner(
        config=sweep.config,
        folder=sweep.folder,
        source=FixedRuns(
            folder=sweep.folder,
            runs=runs,
            print_line=print_line,
            is_edited=partial(
                is_recipe_edited,
                sweep,
                resolve=select_resolver(options),
                environment=get_environment(),
            ),
        ),
        starter=starter,
        print_line=print_line,
    )
    return runner.run()


def submit_sweep(
    sweep: Sweep, runs: Sequence[PlannedRun], overrides: Sequence[str], options: Namespace
) -> int:
    """Submit the remaining runs of the sweep, or show what would be submitted.

    `overrides` are those of the command line.
    """
    left = get_unfinished_runs(runs)
    if not left:
        print_note(
            options,
            f"nothing to do: {pluralize(len(runs), 'run')} in {sweep.folder} are finished, "
            "archived or training",
        )
        return 0
    if uses_jobs(left):
        return train_in_jobs(sweep, runs, overrides, options)
    allows_code = any(needs_consent(run.resolved) for run in left)
    if options.dry_run:
        sys.stdout.write(build_array_script(sweep, left, allows_code=allows_code))
        return 0
    require_torch()
    with lock_sweep_folder(sweep.folder):
        write_overrides(sweep.folder, overrides)
        now = datetime.now().astimezone()
        job = submit_array(sweep, left, get_environment(), now, allows_code=allows_code)
    print_note(
        options,
        f"job {job} trains {pluralize(len(left), 'run')} in {sweep.folder}; --table shows the "
        "results so far",
    )
    return 0


def train_in_jobs(
    sweep: Sweep, runs: Sequence[PlannedRun], overrides: Sequence[str], options: Namespace
) -> int:
    """Train the remaining runs in a Job each, or show the Jobs.

    Without a queue of the cluster, this process starts and follows them, `slots` at a time.
    """
    left = get_unfinished_runs(runs)
    check_jobs(sweep, left, options)
    if options.dry_run:
        print_jobs(left)
        return 0
    with lock_sweep_folder(sweep.folder):
        write_overrides(sweep.folder, overrides)
        if any(has_queue(run) for run in left):
            return submit_to_queue(sweep, left, options)
        code = start_runs(sweep, runs, options, build_starter(sweep, left))
        print_sweep_results(load_sweep_results(sweep, runs), sweep, options.format)
    return code


def check_run_builds(run: PlannedRun) -> None:
    """Raise a problem if a run cannot be built, before any other has trained for hours.

    This finds problems that no rule covers.
    """
    errors = [
        problem for problem in find_build_problems(run.resolved) if problem.severity == "error"
    ]
    if errors:
        raise ProblemsFound(
            replace(problem, message=f"{run.name}: {problem.message}") for problem in errors
        )


def load_sweep_results(sweep: Sweep, runs: Sequence[PlannedRun]) -> list[SweepRunResult]:
    """Load the results of each run so far."""
    ended = load_early_stops(sweep.folder)
    return [
        load_sweep_result(
            run.name, run.folder, run.values, sweep.config, is_ended=run.name in ended
        )
        for run in runs
    ]


def print_sweep_results(found: Sequence[SweepRunResult], sweep: Sweep, output_format: str) -> None:
    """Print the results, best first, and warn if nothing ranks them."""
    config = sweep.config
    rows = build_result_rows(found, config)
    if output_format == "json":
        sys.stdout.write(
            "".join(
                json.dumps(sweep_result_to_dict(result, config), ensure_ascii=False) + "\n"
                for result in found
            )
        )
    elif output_format == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        right = range(2, len(rows[0]))
        sys.stdout.write(format_text_table(rows, right_aligned=right, width=get_terminal_width()))
    if (problem := find_missing_metric(found, sweep.folder, config)) is not None:
        print_problems([problem])
