"""`titanrun runs`: what was trained so far, which run is which, and what was different about it. Read from files, without torch."""

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

from titanrun.cli import runs_care, runs_compare
from titanrun.cli.arguments import Parser
from titanrun.cli.columns import in_columns
from titanrun.cli.voice import detail, note
from titanrun.components.metrics.readings import duration
from titanrun.config.counted import counted
from titanrun.config.problems import fail
from titanrun.config.suggest import closest, listing
from titanrun.ledger.entry import Entry, as_data
from titanrun.ledger.index import INDEX, archives_below, entries_below
from titanrun.ledger.live import STATES, here_now, live_state
from titanrun.ledger.wanted import NUMBERS, SORTED_BY, condition, in_order
from titanrun.recipe.run_files import RUNS

EXAMPLES = """  titanrun runs ls                                          all below runs/
  titanrun runs ls --state finished --sort validation --limit 5
  titanrun runs ls sweeps --where 'loss<3.2' --tag baseline
  titanrun runs ls --format csv > runs.csv
  titanrun runs show runs/first
  titanrun runs compare runs/a runs/b runs/c                what differs, beside the numbers
  titanrun runs diff runs/a runs/b                          recipe and surroundings of two
  titanrun runs tag runs/first baseline
  titanrun runs archive runs/first
  titanrun runs rm runs/first --yes"""
SUMMARY = (
    "List runs, look at them, compare, tag, archive and remove them. Everything is read from the files of run directories; nothing is "
    "uploaded and nothing runs in the background. Torch is not needed."
)
LS_SUMMARY = (
    "The runs below a folder, oldest first. States: starting and running are alive; finished, preempted (stopped by a signal with nothing "
    "lost) and failed have ended and said so; crashed: the process is gone without a word; stale: on another machine, and silent for 15 "
    f"minutes. What was read is kept in {INDEX} in that folder, which may be deleted at any time."
)
HEAD = (
    "run",
    "state",
    "step",
    "loss",
    "validation",
    "tok/s",
    "duration",
    "started",
    "commit",
    "tags",
)
TO_THE_RIGHT = {2, 3, 4, 5, 6}


def run(arguments: list[str]) -> int:
    """The exit code of one of the subcommands."""
    known: dict[str, Callable[[list[str]], int]] = {
        "ls": list_runs,
        "show": runs_compare.show,
        "diff": runs_compare.diff,
        "compare": runs_compare.compare,
        "tag": runs_care.tag,
        "rm": runs_care.remove,
        "archive": runs_care.archive,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = Parser("runs", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{listing(known, last='or')}; each explains itself with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="what it takes")
    asked = parser.parse_args(arguments).action
    meant = closest(asked, known)
    help = f"did you mean '{meant}'?" if meant else f"it does {listing(known, last='and')}"
    raise fail("usage", f"titanrun runs does not know '{asked}'", help=help)


def list_runs(arguments: list[str]) -> int:
    """The runs below folders, a line each."""
    parser = Parser("runs ls", LS_SUMMARY, EXAMPLES)
    parser.add_argument(
        "folders", metavar="folder", nargs="*", help=f"folders that hold runs; default: {RUNS}"
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
        help="only runs whose name or folder has this text in it",
    )
    number = f"only runs where this holds, such as 'loss<3.2', of {listing(NUMBERS, last='and')}"
    parser.add_argument(
        "--where", action="append", default=[], metavar="CONDITION", type=str, help=number
    )
    parser.add_argument(
        "--archived", action="store_true", help="those that runs archive moved out of sight instead"
    )
    parser.add_argument(
        "--sort", choices=SORTED_BY, default="started", help="by what they are sorted, ascending"
    )
    parser.add_argument("--reverse", action="store_true", help="descending")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N only")
    parser.add_argument(
        "--format", choices=("text", "json", "csv"), default="text", help="json: one object a run"
    )
    options = parser.parse_args(arguments)
    if options.limit is not None and options.limit < 1:
        raise fail("usage", f"--limit {options.limit} lists nothing", help="give 1 or more")
    conditions = [condition(text) for text in options.where]
    here = here_now()
    folders = [Path(folder) for folder in options.folders or [RUNS]]
    if options.archived:
        folders = [archive for folder in folders for archive in archives_below(folder)]
    found = [
        (entry, live_state(entry, here)) for folder in folders for entry in entries_below(folder)
    ]
    kept = [
        (entry, state)
        for entry, state in found
        if (not options.state or state in options.state)
        and set(options.tag) <= set(entry.tags)
        and (options.name in entry.run or options.name in (entry.name or ""))
        and all(wanted.holds(entry) for wanted in conditions)
    ]
    print_runs(
        in_order(kept, options.sort, is_reversed=options.reverse)[: options.limit], options.format
    )
    detail(options, f"{counted(len(found), 'run')} found")
    if not kept:
        note(
            options,
            f"none of {counted(len(found), 'run')} is like this"
            if found
            else "there are no runs here",
        )
    return 0


def print_runs(pairs: list[tuple[Entry, str]], form: str) -> None:
    """Runs with their states in columns, or as lines for programs."""
    if form == "json":
        sys.stdout.write(
            "".join(
                json.dumps(as_data(entry, state), ensure_ascii=False) + "\n"
                for entry, state in pairs
            )
        )
    elif form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(as_data(Entry(""), ""))
        writer.writerows(
            {**as_data(entry, state), "tags": " ".join(entry.tags)}.values()
            for entry, state in pairs
        )
    elif pairs:
        sys.stdout.write(
            in_columns([HEAD, *(cells(entry, state) for entry, state in pairs)], right=TO_THE_RIGHT)
        )


def cells(entry: Entry, state: str) -> tuple[str, ...]:
    """One run in columns."""
    step = f"{entry.step}/{entry.steps}" if entry.steps else str(entry.step)
    commit = f"{entry.commit[:8]}{'+' if entry.dirty else ''}" if entry.commit else ""
    numbers = (
        decimal(entry.loss),
        decimal(entry.validation),
        "" if entry.tps is None else f"{entry.tps:,.0f}",
    )
    took = "" if entry.seconds is None else duration(entry.seconds)
    return (
        entry.run,
        state,
        step,
        *numbers,
        took,
        (entry.started or "")[:16].replace("T", " "),
        commit,
        " ".join(entry.tags),
    )


def decimal(value: float | None) -> str:
    """A loss, or nothing."""
    return "" if value is None else f"{value:.5f}"
