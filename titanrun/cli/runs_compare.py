"""`titanrun runs show|diff|compare`: one run, or several beside each other."""

import json
import sys
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.columns import in_columns
from titanrun.cli.diff_config import as_data as difference_data
from titanrun.cli.diff_config import inline, print_table
from titanrun.components.checkpoints.manifest import is_checkpoint
from titanrun.components.metrics.readings import duration
from titanrun.launch.environment import environment
from titanrun.ledger.entry import as_data, encoded
from titanrun.ledger.live import here_now, live_state
from titanrun.ledger.side_by_side import Known, Row, read_known, rows, run_folder, surroundings
from titanrun.recipe.compared import differences, read_side
from titanrun.recipe.saved import checkpoints_at

EXAMPLES = """  titanrun runs show runs/first
  titanrun runs diff runs/a runs/b
  titanrun runs diff runs/a runs/b --quiet                  only the exit code: 0 same, 1 differs
  titanrun runs compare runs/a runs/b runs/c
  titanrun runs compare runs/a runs/b --format json"""
EXIT_DIFFERS = 1
# a value that is longer is cut in a table, never in JSON
WIDEST = 40


def show(arguments: list[str]) -> int:
    """What is known about one run."""
    parser = Parser("runs show", "What the files of a run say about it.", EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    options = parser.parse_args(arguments)
    known = read_known(options.run)
    state = live_state(known.entry, here_now())
    saved = [
        step for step, path in checkpoints_at(Path(options.run)).items() if is_checkpoint(path)
    ]
    if options.format == "json":
        print(
            json.dumps(
                {
                    **as_data(known.entry, state),
                    "checkpoints": saved,
                    "argv": known.start.get("argv"),
                },
                ensure_ascii=False,
            )
        )
        return 0
    facts = {
        **described(known, state),
        "checkpoints": " ".join(f"step-{step}" for step in saved) or "none",
    }
    sys.stdout.write(in_columns([(name, text) for name, text in facts.items() if text]))
    return 0


def described(known: Known, state: str) -> dict[str, str]:
    """The facts of a run, in words; what is not known is empty."""
    entry = known.entry
    changes = " and uncommitted changes" if entry.dirty else ""
    last = max(known.lines, default=None)
    return {
        "run": entry.run,
        "name": entry.name or "",
        "model": " ".join(
            str(word)
            for word in (known.recipe.model.name, getattr(known.recipe.model, "flavor", None))
            if word
        ),
        "state": state,
        "step": f"{entry.step}" + (f" of {entry.steps}" if entry.steps else ""),
        "last logged": "" if last is None else f"step {last}: " + ", ".join(last_numbers(known)),
        "best validation": "" if entry.validation is None else f"{entry.validation:.5f}",
        "started": (entry.started or "") + (f", {entry.starts} starts" if entry.starts > 1 else ""),
        "duration": "" if entry.seconds is None else duration(entry.seconds),
        "host": entry.host or "",
        "command": " ".join(known.start.get("argv") or ()),
        "commit": f"{entry.commit}{changes}" if entry.commit else "",
        "tags": " ".join(entry.tags),
    }


def last_numbers(known: Known) -> list[str]:
    """Loss, norm and speed of the last logged step."""
    entry = known.entry
    texts = (("loss", entry.loss), ("grad norm", entry.grad_norm))
    found = [f"{name} {value:.5f}" for name, value in texts if value is not None]
    return found + ([] if entry.tps is None else [f"{entry.tps:,.0f} tokens/s on a device"])


def diff(arguments: list[str]) -> int:
    """0: the same recipe in the same surroundings; 1: something differs."""
    parser = Parser(
        "runs diff",
        "What differs between two runs: their recipes, then commit, code, packages, inputs and machine.",
        EXAMPLES,
    )
    parser.add_argument("a", help="a run directory")
    parser.add_argument("b", help="another one")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a difference"
    )
    options = parser.parse_args(arguments)
    variables = environment()
    sides = [read_side(str(run_folder(named)), [], variables) for named in (options.a, options.b)]
    of_recipe = differences(sides[0], sides[1], "effective")
    around = surroundings([read_known(named).start for named in (options.a, options.b)])
    if options.format == "json":
        for difference in of_recipe:
            print(json.dumps(difference_data(difference), ensure_ascii=False))
        for row in around:
            print(
                json.dumps(
                    {"surroundings": row.name, "a": row.values[0], "b": row.values[1]},
                    ensure_ascii=False,
                )
            )
    elif not options.quiet:
        if of_recipe:
            print_table(of_recipe)
        sys.stdout.write(
            "".join(
                f"{row.name}: {cell(row.values[0])} -> {cell(row.values[1])}\n" for row in around
            )
        )
    return EXIT_DIFFERS if of_recipe or around else 0


def compare(arguments: list[str]) -> int:
    """Numbers of runs, and all in which they differ, a column each."""
    summary = (
        "The numbers that runs reached, and every setting and circumstance in which they differ: settings that move the loss first. "
        "Losses are also compared at the last step that all runs logged."
    )
    parser = Parser("runs compare", summary, EXAMPLES)
    parser.add_argument("runs", metavar="run", nargs="+", help="two run directories or more")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: one object a row"
    )
    options = parser.parse_args(arguments)
    if len(options.runs) < 2:
        parser.error("one run alone cannot be compared")
    runs, here = [read_known(named) for named in options.runs], here_now()
    found = rows(runs, [live_state(run.entry, here) for run in runs])
    if options.format == "json":
        for row in found:
            values = {
                named: encoded(value) for named, value in zip(options.runs, row.values, strict=True)
            }
            print(
                json.dumps(
                    {"group": row.group, "name": row.name, "values": values}, ensure_ascii=False
                )
            )
        return 0
    sys.stdout.write(table(options.runs, found))
    return 0


def table(names: list[str], found: list[Row]) -> str:
    """Rows in groups, a column for each run; what is like in the first run stays visible: a row has all of its values."""
    lines: list[tuple[str, ...]] = [("", *names)]
    group = ""
    for row in found:
        if row.group != group:
            group = row.group
            lines.append((f"{group}:", *("" for _ in names)))
        lines.append((f"  {row.name}", *(cell(value) for value in row.values)))
    return in_columns(lines)


def cell(value: object) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else inline(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
