"""`titanrun sweep`: the runs of a sweep file, checked, started, gone on with, and compared."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.columns import in_columns
from titanrun.cli.guard import print_problems
from titanrun.cli.voice import note
from titanrun.config.counted import counted
from titanrun.config.problems import ProblemsFound
from titanrun.launch.environment import environment
from titanrun.launch.try_build import try_build
from titanrun.sweep.array import array_script, runs_left, submit_array
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.examined import Planned, built_once, examined
from titanrun.sweep.points import Sweep, read_sweep
from titanrun.sweep.results import Result, as_data, in_rows, read_result, state_of
from titanrun.sweep.runner import Runner, locked, read_ended

SUMMARY = (
    "Train a recipe with every combination of the values in a sweep file. All runs are checked before the first one starts. Given again, "
    "it leaves alone what is finished and goes on with the rest."
)
EXAMPLES = """  titanrun sweep sweep.yaml --list                    the runs, and what each one changes
  titanrun sweep sweep.yaml
  titanrun sweep sweep.yaml training.steps=50         a change for all runs
  titanrun sweep sweep.yaml --launch                  as one array of Slurm, where the recipe says launch: slurm
  titanrun sweep sweep.yaml --table                   what came of it so far, the best first
  titanrun sweep sweep.yaml --table --format csv > results.csv"""


def run(arguments: list[str]) -> int:
    """0: all runs have ended as they should; else the exit code of the first that failed, or 75 where a signal came."""
    overrides, others = split_overrides(arguments)
    parser = Parser("sweep", SUMMARY, EXAMPLES)
    parser.add_argument(
        "sweep",
        metavar="sweep",
        help="a sweep file (.yaml or .toml): recipe, and grid, zip, list or random",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--list",
        action="store_true",
        help="only say what each run would change, as arguments of titanrun train",
    )
    what.add_argument(
        "--launch",
        action="store_true",
        help="submit what is left as one array of Slurm, slots of its tasks at a time",
    )
    what.add_argument(
        "--dry-run", action="store_true", help="only print the script that --launch would submit"
    )
    what.add_argument("--table", action="store_true", help="only show the results there are")
    parser.add_argument(
        "--format", choices=("text", "csv", "json"), default="text", help="of the table"
    )
    parser.takes_overrides()
    options = parser.parse_args(others)
    sweep = read_sweep(Path(options.sweep))
    runs, warnings = examined(sweep, overrides, environment())
    if warnings and not options.quiet and not options.table:
        print_problems(warnings)
    if options.list:
        print_runs(sweep, runs)
        return 0
    if options.launch or options.dry_run:
        return launched(sweep, runs, options)
    code = 0
    with nullcontext() if options.table else locked(sweep.folder):
        if not options.table:
            code = trained(sweep, runs, options)
        print_table(results(sweep, runs), sweep.config, options.format)
    return code


def print_runs(sweep: Sweep, runs: Sequence[Planned]) -> None:
    """A line for each run, to be given to `titanrun train` after the recipe."""
    for run in runs:
        print(f"{run.folder}  {' '.join(run.overrides)}")


def trained(sweep: Sweep, runs: Sequence[Planned], options: Namespace) -> int:
    """Trains what is left of the sweep. Returns the exit code."""
    for run in built_once([run for run in runs if state_of(run.folder) == "waiting"]):
        refuse_unbuildable(run)
    note(options, f"{counted(len(runs), 'run')} in {sweep.folder}, {sweep.config.slots} at a time")
    runner = Runner(
        config=sweep.config,
        recipe=sweep.recipe,
        folder=sweep.folder,
        runs=runs,
        tell=lambda text: note(options, text),
    )
    return runner.run()


def launched(sweep: Sweep, runs: Sequence[Planned], options: Namespace) -> int:
    """Submits what is left of the sweep, or shows what would be submitted."""
    left = runs_left(runs)
    if not left:
        note(
            options,
            f"nothing to do: {counted(len(runs), 'run')} in {sweep.folder} are finished, or training",
        )
        return 0
    if options.dry_run:
        sys.stdout.write(array_script(sweep, left))
        return 0
    with locked(sweep.folder):
        job = submit_array(sweep, left, environment(), datetime.now().astimezone())
    note(
        options,
        f"job {job} trains {counted(len(left), 'run')} in {sweep.folder}; --table shows what came of them so far",
    )
    return 0


def refuse_unbuildable(run: Planned) -> None:
    """Raises where a run cannot be built, which no rule foresaw, before any other has trained for hours."""
    errors = [problem for problem in try_build(run.resolved) if problem.severity == "error"]
    if errors:
        raise ProblemsFound(
            replace(problem, message=f"{run.name}: {problem.message}") for problem in errors
        )


def results(sweep: Sweep, runs: Sequence[Planned]) -> list[Result]:
    """What came of each run so far."""
    ended = read_ended(sweep.folder)
    return [
        read_result(run.name, run.folder, run.values, sweep.config, is_ended=run.name in ended)
        for run in runs
    ]


def print_table(found: Sequence[Result], config: SweepConfig, form: str) -> None:
    """The results, the best first."""
    rows = in_rows(found, config)
    if form == "json":
        sys.stdout.write(
            "".join(
                json.dumps(as_data(result, config), ensure_ascii=False) + "\n" for result in found
            )
        )
    elif form == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows(rows)
    else:
        sys.stdout.write(in_columns(rows, right=range(2, len(rows[0]))))
