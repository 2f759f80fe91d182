"""`titanrun runs show|diff|compare`: show one run, or compare several."""

import json
import sys
from argparse import SUPPRESS
from collections.abc import Mapping
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.diff_config import field_diff_to_dict as difference_data
from titanrun.cli.diff_config import format_inline_value, print_recipe_diff
from titanrun.cli.run_groups import find_single_runs, load_group
from titanrun.cli.terminal import get_terminal_width, write_wrapped
from titanrun.cli.text_table import format_text_table
from titanrun.components.checkpoints.spec.manifest import is_checkpoint
from titanrun.components.metrics.spec.metric_format import format_elapsed_time
from titanrun.config.exit_codes import EXIT_DIFFERS
from titanrun.config.problems import problem_error
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.comparing.recipe_diff import diff_recipes, load_diff_side
from titanrun.recipe.rundir.checkpoint_lookup import get_checkpoints_by_step
from titanrun.runs.group_events import (
    describe_groups,
    find_unlogged_steps,
    format_steps,
    load_group_events,
)
from titanrun.runs.run_comparison import (
    OUTCOME,
    ComparisonRow,
    RunData,
    build_environment_rows,
    compare_runs,
    get_run_folder,
    load_related_runs,
    load_run_data,
)
from titanrun.runs.run_state import get_host_info, get_run_state
from titanrun.runs.run_summary import encode_non_finite, run_summary_to_dict

EXAMPLES = """  titanrun runs show runs/first
  titanrun runs diff runs/a runs/b
  titanrun runs diff runs/a runs/b --quiet  only the exit code: 0 equal, 1 differs
  titanrun runs compare runs/a runs/b runs/c
  titanrun runs compare runs/a runs/b --format json"""
# a longer value is truncated in a table, never in JSON
MAX_CELL_WIDTH = 40


def show_run(arguments: list[str]) -> int:
    """Show the known data of one run."""
    parser = CommandParser("runs show", "Show the data in the files of a run.", EXAMPLES)
    parser.add_argument("run", help="a run directory")
    parser.add_format_option("json: one object")
    parser.add_argument("--plot", nargs="?", const="loss", metavar="METRIC", help=SUPPRESS)
    options = parser.parse_args(arguments)
    if options.plot:
        raise problem_error(
            "usage",
            "titanrun runs show plots nothing",
            hint=f"titanrun plot {options.run} --metric loss plots a metric, with -o FILE.png into "
            "a file",
        )
    [options.run] = find_single_runs("runs show", [options.run])
    known = load_run_data(options.run)
    state = get_run_state(known.summary, get_host_info())
    saved = [
        step
        for step, path in get_checkpoints_by_step(Path(options.run)).items()
        if is_checkpoint(path)
    ]
    groups = load_group_events(Path(options.run))
    unlogged = find_unlogged_steps(groups, known.metrics_by_step, known.recipe.metrics.log_freq)
    if options.format == "json":
        print(
            json.dumps(
                {
                    **run_summary_to_dict(known.summary, state),
                    "checkpoints": saved,
                    "unlogged_steps": unlogged,
                    "argv": known.last_start.get("argv"),
                    "parameters": known.last_start.get("parameters"),
                },
                ensure_ascii=False,
            )
        )
        return 0
    facts = {
        **get_run_facts(known, state),
        "checkpoints": " ".join(f"step-{step}" for step in saved) or "none",
        "replica groups": describe_groups(groups),
        "lost metrics": f"steps {format_steps(unlogged)}, with the group that logged"
        if unlogged
        else "",
    }
    write_wrapped(format_text_table([(name, text) for name, text in facts.items() if text]))
    return 0


def get_run_facts(known: RunData, state: str) -> dict[str, str]:
    """Return the properties of a run as text; unknown ones are empty."""
    entry = known.summary
    changes = " and uncommitted changes" if entry.dirty else ""
    last = max(known.metrics_by_step, default=None)
    return {
        "run": entry.run,
        "name": entry.name or "",
        "model": " ".join(
            str(word)
            for word in (known.recipe.model.name, getattr(known.recipe.model, "flavor", None))
            if word
        ),
        "parameters": format_parameters(known.last_start.get("parameters")),
        "state": state,
        "step": f"{entry.step:,}" + (f" of {entry.steps:,}" if entry.steps else ""),
        "last logged": ""
        if last is None
        else f"step {last}: " + ", ".join(format_last_metrics(known)),
        "best validation": "" if entry.validation is None else f"{entry.validation:.5f}",
        "started": (entry.started or "") + (f", {entry.starts} starts" if entry.starts > 1 else ""),
        "duration": "" if entry.seconds is None else format_elapsed_time(entry.seconds),
        "host": entry.host or "",
        "command": " ".join(known.last_start.get("argv") or ()),
        "commit": f"{entry.commit}{changes}" if entry.commit else "",
        "tags": " ".join(entry.tags),
    }


def format_parameters(counts: Mapping[str, int] | None) -> str:
    """Format how many parameters a model has and are trained; nothing if it is not known."""
    if not counts:
        return ""
    total, trainable = counts["total"], counts["trainable"]
    if trainable == total:
        return f"{total:,}, all trained"
    return f"{total:,}, of which {trainable:,} are trained ({trainable / total:.2%})"


def format_last_metrics(known: RunData) -> list[str]:
    """Format loss, norm and speed of the last logged step."""
    entry = known.summary
    texts = (("loss", entry.loss), ("grad norm", entry.grad_norm))
    found = [f"{name} {value:.5f}" for name, value in texts if value is not None]
    return found + ([] if entry.tps is None else [f"{entry.tps:,.0f} tokens/s per device"])


def diff_runs(arguments: list[str]) -> int:
    """Return 0 for equal recipes and environments, else 1."""
    parser = CommandParser(
        "runs diff",
        "Compare two runs: their recipes, then commit, code, packages, inputs and machine.",
        EXAMPLES,
    )
    parser.add_argument("a", help="a run directory")
    parser.add_argument("b", help="another one")
    parser.add_format_option("json: one object per difference")
    options = parser.parse_args(arguments)
    options.a, options.b = find_single_runs("runs diff", [options.a, options.b])
    variables = get_environment()
    sides = [
        load_diff_side(str(get_run_folder(named)), [], variables)
        for named in (options.a, options.b)
    ]
    of_recipe = diff_recipes(sides[0], sides[1], "effective")
    around = build_environment_rows(
        [load_run_data(named).last_start for named in (options.a, options.b)]
    )
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
            print_recipe_diff(of_recipe)
        write_wrapped(
            "".join(
                f"{row.name}: {format_comparison_cell(row, 0)} -> "
                f"{format_comparison_cell(row, 1)}\n"
                for row in around
            )
        )
    return EXIT_DIFFERS if of_recipe or around else 0


def print_run_comparison(arguments: list[str]) -> int:
    """Print results and differences of runs, with a column per run."""
    summary = (
        "Show the results of runs, and every setting and circumstance in which they differ, "
        "those that move the loss first. Losses are also compared at the last step that all runs "
        "logged. The steps of a fork continue those of the run that it started from."
    )
    parser = CommandParser("runs compare", summary, EXAMPLES)
    parser.add_argument("runs", metavar="run", nargs="+", help="two or more run directories")
    parser.add_format_option("json: one object per row")
    parser.add_argument(
        "--align",
        choices=("step", "tokens", "lineage"),
        help="what losses are compared at: the same step or tokens of each run, or by lineage, "
        "where a fork's steps go on, the default where two runs are related",
    )
    options = parser.parse_args(arguments)
    if len(options.runs) < 2 and len(load_group(options.runs[0])) < 2:
        parser.error("at least two runs are required")
    options.runs = find_single_runs("runs compare", options.runs, takes_many=True)
    (runs, align), here = load_related_runs(options.runs, options.align), get_host_info()
    found = compare_runs(runs, [get_run_state(run.summary, here) for run in runs], align)
    if options.format == "json":
        for row in found:
            values = {
                named: encode_non_finite(value)
                for named, value in zip(options.runs, row.values, strict=True)
            }
            print(
                json.dumps(
                    {"group": row.group, "name": row.name, "values": values}, ensure_ascii=False
                )
            )
        return 0
    sys.stdout.write(format_comparison_table(options.runs, found, head=f"aligned by {align}"))
    return 0


def format_comparison_table(names: list[str], found: list[ComparisonRow], *, head: str) -> str:
    """Format rows in groups, with a column per run, below a line with `head` and their names.

    A row always has all of its values, also those equal to the first run.
    """
    lines: list[tuple[str, ...]] = [(head, *names)]
    group = ""
    for row in found:
        if row.group != group:
            group = row.group
            lines.append((f"{group}:", *("" for _ in names)))
        cells = (format_comparison_cell(row, number) for number in range(len(row.values)))
        lines.append((f"  {row.name}", *cells))
    return format_text_table(lines, width=get_terminal_width())


def format_comparison_cell(row: ComparisonRow, number: int) -> str:
    """Format a value for a table cell: outcomes are rounded, settings are shown as they are."""
    value = row.values[number]
    if value is None:
        return "-"
    is_rounded = isinstance(value, float) and row.group == OUTCOME
    text = f"{value:.6g}" if is_rounded else format_inline_value(value)
    return text if len(text) <= MAX_CELL_WIDTH else f"{text[: MAX_CELL_WIDTH - 3]}..."
