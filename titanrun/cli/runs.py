"""`titanrun runs`: list, show, compare, tag and remove runs, from files and without torch."""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from titanrun.cli import runs_compare, runs_manage
from titanrun.cli.arguments import CommandParser
from titanrun.cli.color import Style, style_text
from titanrun.cli.messages import print_detail, print_note
from titanrun.cli.terminal import get_terminal_width, write_wrapped
from titanrun.cli.text_table import drop_columns, format_text_table
from titanrun.components.metrics.spec.metric_format import format_decimals, format_elapsed_time
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.recipe.rundir.run_files import RUNS
from titanrun.runs.run_filters import NUMERIC_FIELDS, SORT_KEYS, parse_run_filter, sort_runs
from titanrun.runs.run_index import INDEX, list_archives, load_run_summaries
from titanrun.runs.run_state import (
    INTERRUPTED,
    STATES,
    describe_run_state,
    get_host_info,
    get_run_state,
)
from titanrun.runs.run_summary import RunSummary, run_summary_to_dict

EXAMPLES = """  titanrun runs ls                            all runs below runs/
  titanrun runs ls --state finished --sort validation --limit 5
  titanrun runs ls sweeps --where 'loss<3.2' --tag baseline
  titanrun runs ls --format csv > runs.csv
  titanrun runs show runs/first
  titanrun runs compare runs/a runs/b runs/c  results and differences
  titanrun runs diff runs/a runs/b            recipe and environment of two runs
  titanrun runs tag runs/first baseline
  titanrun runs archive runs/first
  titanrun runs rm runs/first --yes"""
SUMMARY = (
    "List, show, compare, tag, archive and remove runs. Everything is read from the files of run "
    "directories; nothing is uploaded and nothing runs in the background. Torch is not needed."
)
LS_SUMMARY = (
    "List the runs below a folder, oldest first. States: starting and running are alive; "
    "finished, preempted (stopped by a signal with nothing lost; by Ctrl-C: interrupted in the "
    "table) and failed have ended and recorded it; crashed: the process died without a record; "
    "stale: on another machine, without a heartbeat for 15 minutes. `last loss` is that of the "
    "last logged training step, `best val` the lowest validation loss of all steps; --sort and "
    "--where call them loss and validation. "
    f"The results are cached in {INDEX} in that folder, which may be "
    "deleted at any time."
)
TABLE_HEAD = (
    "run",
    "state",
    "step",
    "last loss",
    "best val",
    "tok/s",
    "duration",
    "started",
    "commit",
    "tags",
)
RIGHT_ALIGNED = {"step", "last loss", "best val", "tok/s", "duration"}
# columns of TABLE_HEAD that a narrow terminal goes without, the least important first
DROPPABLE = (8, 5, 6, 7, 9)
STATE_STYLES: Mapping[str, Style] = {
    "starting": "active",
    "running": "active",
    "finished": "good",
    "preempted": "warning",
    INTERRUPTED: "warning",
    "stale": "warning",
    "failed": "bad",
    "crashed": "bad",
}


def run(arguments: list[str]) -> int:
    """Run one of the subcommands and return its exit code."""
    known: dict[str, Callable[[list[str]], int]] = {
        "ls": list_runs,
        "show": runs_compare.show_run,
        "diff": runs_compare.diff_runs,
        "compare": runs_compare.print_run_comparison,
        "tag": runs_manage.tag_run,
        "rm": runs_manage.remove_runs,
        "archive": runs_manage.archive_runs,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = CommandParser("runs", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{format_word_list(known, conjunction='or')}; see each with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="arguments of the subcommand")
    asked = parser.parse_args(arguments).action
    meant = find_closest(asked, known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"subcommands: {format_word_list(known, conjunction='and')}"
    )
    raise problem_error("usage", f"unknown subcommand of titanrun runs: '{asked}'", hint=hint)


def list_runs(arguments: list[str]) -> int:
    """List the runs below folders, one per line."""
    options = parse_list_options(arguments)
    if options.limit is not None and options.limit < 1:
        raise problem_error("usage", f"--limit {options.limit} is below 1", hint="use 1 or more")
    conditions = [parse_run_filter(text) for text in options.where]
    here = get_host_info()
    folders = [Path(folder) for folder in options.folders or [RUNS]]
    if options.archived:
        folders = [archive for folder in folders for archive in list_archives(folder)]
    found = [
        (entry, get_run_state(entry, here))
        for folder in folders
        for entry in load_run_summaries(folder)
    ]
    kept = [
        (entry, state)
        for entry, state in found
        if (not options.state or state in options.state)
        and set(options.tag) <= set(entry.tags)
        and (options.name in entry.run or options.name in (entry.name or ""))
        and all(wanted.holds(entry) for wanted in conditions)
    ]
    print_run_list(
        sort_runs(kept, options.sort, is_reversed=options.reverse)[: options.limit],
        options.format,
        is_quiet=options.quiet,
    )
    print_detail(options, f"{pluralize(len(found), 'run')} found")
    if not kept:
        print_note(
            options,
            f"none of {pluralize(len(found), 'run')} matches" if found else "no runs found",
        )
    return 0


def parse_list_options(arguments: list[str]) -> Namespace:
    """Parse the command line of `runs ls`."""
    parser = CommandParser("runs ls", LS_SUMMARY, EXAMPLES)
    parser.add_argument(
        "folders", metavar="folder", nargs="*", help=f"folders that contain runs; default: {RUNS}"
    )
    parser.add_argument(
        "--state",
        action="append",
        choices=STATES,
        help="only runs in this state; may be given several times",
    )
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        metavar="TAG",
        help="only runs with this tag; several: with all of them",
    )
    parser.add_argument(
        "--name",
        metavar="TEXT",
        default="",
        help="only runs whose name or folder contains this text",
    )
    fields = format_word_list(NUMERIC_FIELDS, conjunction="and")
    number = f"only runs that satisfy a condition such as 'loss<3.2', of {fields}"
    parser.add_argument(
        "--where", action="append", default=[], metavar="CONDITION", type=str, help=number
    )
    parser.add_argument("--archived", action="store_true", help="list archived runs instead")
    parser.add_argument("--sort", choices=SORT_KEYS, default="started", help="sort key, ascending")
    parser.add_argument("--reverse", action="store_true", help="descending")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N only")
    parser.add_format_option("json: one object per run", choices=("text", "json", "csv"))
    return parser.parse_args(arguments)


def print_run_list(
    pairs: list[tuple[RunSummary, str]], output_format: str, *, is_quiet: bool = False
) -> None:
    """Print runs with their states in columns, or as lines for programs."""
    if output_format == "json":
        sys.stdout.write(
            "".join(
                json.dumps(run_summary_to_dict(entry, state), ensure_ascii=False) + "\n"
                for entry, state in pairs
            )
        )
    elif output_format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(run_summary_to_dict(RunSummary(""), ""))
        writer.writerows(
            {**run_summary_to_dict(entry, state), "tags": " ".join(entry.tags)}.values()
            for entry, state in pairs
        )
    elif pairs:
        print_run_table(pairs, is_quiet=is_quiet)


def print_run_table(pairs: list[tuple[RunSummary, str]], *, is_quiet: bool) -> None:
    """Print runs in columns. A terminal shows those that fit, with a note on the others."""
    rows = [TABLE_HEAD, *(format_run_cells(entry, state) for entry, state in pairs)]
    terminal = get_terminal_width()
    kept, hidden = drop_columns(rows, terminal, DROPPABLE)
    right_aligned = {at for at, head in enumerate(kept[0]) if head in RIGHT_ALIGNED}

    def paint(column: int, cell: str) -> str:
        """Color the state of a run."""
        is_state = kept[0][column] == "state" and cell.strip() in STATE_STYLES
        return style_text(cell, STATE_STYLES[cell.strip()]) if is_state else cell

    sys.stdout.write(
        format_text_table(kept, right_aligned=right_aligned, width=terminal, paint=paint)
    )
    if hidden and not is_quiet:
        names = format_word_list(hidden, conjunction="and")
        write_wrapped(f"({names} need a wider terminal or --format csv)\n", sys.stderr)


def format_run_cells(entry: RunSummary, state: str) -> tuple[str, ...]:
    """Format one run as cells."""
    step = f"{entry.step:,}/{entry.steps:,}" if entry.steps else f"{entry.step:,}"
    commit = f"{entry.commit[:8]}{'+' if entry.dirty else ''}" if entry.commit else ""
    numbers = (
        format_loss_cell(entry.loss),
        format_loss_cell(entry.validation),
        "" if entry.tps is None else f"{entry.tps:,.0f}",
    )
    took = "" if entry.seconds is None else format_elapsed_time(entry.seconds)
    return (
        entry.run,
        describe_run_state(entry, state),
        step,
        *numbers,
        took,
        (entry.started or "")[:16].replace("T", " "),
        commit,
        " ".join(entry.tags),
    )


def format_loss_cell(value: float | None) -> str:
    """Format a loss, or empty text."""
    return "" if value is None else format_decimals(value, 5)
