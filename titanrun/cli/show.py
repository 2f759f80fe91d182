"""`titanrun show`: print a recipe with all defaults, and the source of each value."""

import json
import math
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_source_files
from titanrun.cli.run_argument import find_run_or_recipe
from titanrun.cli.show_plot import check_plot_name, plot_lr_schedule
from titanrun.cli.stdin_argument import add_stdin_option, read_stdin_argument
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config.base import dump_config
from titanrun.config.path_syntax import PathSyntaxError, parse_path
from titanrun.config.problems import DataPath, problem_error
from titanrun.config.serialize import format_yaml_scalar, iter_block_lines, to_yaml
from titanrun.config.suggest import find_closest
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import find_value
from titanrun.launch.launch_env import get_environment
from titanrun.recipe.editing.minimize import minimize_recipe
from titanrun.recipe.resolving.provenance import (
    build_source_report,
    collect_value_sources,
    list_data_leaves,
)
from titanrun.recipe.resolving.resolve import Resolved, escape_recipe_data, resolve_recipe
from titanrun.recipe.rundir.run_files import RESOLVED

MAX_VALUE_WIDTH = 40
# the section of a path, empty for a top-level value
SECTION_PATTERN = re.compile(r"(?:\w+(?=[.\[]))?")
NEXT_LINE = "\n    "
EXAMPLES = """  titanrun show recipes/llama3_debug.yaml
  titanrun show recipes/llama3_debug.yaml optimizer
  titanrun show recipes/llama3_debug.yaml training.seq_len
  titanrun show recipes/llama3_debug.yaml --sources optimizer.lr=1e-3
  titanrun show recipes/llama3_debug.yaml --model "converters=[{name: float8_linear,emulate: true}]"
  titanrun show recipes/llama3_debug.yaml --plot lr_scheduler
  titanrun show runs/first/resolved.yaml --minimal > recipe.yaml  only changes from the defaults"""


def run(arguments: list[str]) -> int:
    """Print the resolved recipe, a part of it, or the source of each value."""
    options, overrides = parse_show_options(arguments)
    resolved = resolve_recipe(options.recipe, overrides, environment=get_environment())
    print_source_files(options, resolved.tree)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    if options.model:
        from titanrun.cli.show_model import iter_module_lines

        sys.stdout.write(
            wrap_to_width(
                "".join(iter_module_lines(resolved, as_json=options.json)),
                None if options.json else get_terminal_width(),
            )
        )
        return 0
    if options.plot:
        check_plot_name(options.plot)
        plot_lr_schedule(resolved.run, options.plot, options.out)
        return 0
    if options.minimal:
        sys.stdout.write(to_yaml(escape_recipe_data(resolved.run, minimize_recipe(resolved.run))))
        return 0
    path = parse_known_path(options.path, resolved) if options.path else ()
    if options.json:
        sys.stdout.writelines(
            iter_source_json(resolved, path) if options.sources else iter_value_json(resolved, path)
        )
    else:
        sys.stdout.write(
            format_values_with_sources(resolved, path)
            if options.sources
            else format_value_at(resolved, path)
        )
    return 0


def parse_show_options(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Parse the command line into options and overrides."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "show",
        "Show a recipe with every default filled in and every auto field resolved.",
        EXAMPLES,
    )
    parser.add_argument("recipe", help="a recipe, or a run")
    parser.add_argument("path", nargs="?", help="a section or value, such as optimizer.lr")
    parser.add_argument("--sources", action="store_true", help="show the source of each value")
    parser.add_argument(
        "--minimal",
        action="store_true",
        help="print the shortest recipe that resolves to the same run",
    )
    parser.add_argument(
        "--model",
        action="store_true",
        help="show the modules of the model, and which ones each converter converted; needs torch",
    )
    parser.add_argument(
        "--plot",
        nargs="?",
        const="lr_scheduler",
        metavar="lr_scheduler",
        help="plot the learning rate over the steps; training.steps=N changes their number",
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="",
        help="with --plot: plot into this .svg or .png file",
    )
    parser.add_argument(
        "--resolved",
        action="store_true",
        help="the default: the bytes of resolved.yaml, or a part of them",
    )
    parser.add_argument(
        "--json", action="store_true", help="the same as JSON; with --sources one object per value"
    )
    parser.add_trust_option()
    add_stdin_option(parser)
    parser.allow_overrides()
    options = parser.parse_intermixed_args(others)
    [options.recipe] = read_stdin_argument([find_run_recipe(options.recipe)], options)
    check_show_options(options)
    return options, overrides


def find_run_recipe(named: str) -> str:
    """Return the resolved recipe of a run or checkpoint that is named; other words unchanged."""
    named = find_run_or_recipe(named)
    resolved = Path(named) / RESOLVED
    return str(resolved) if resolved.is_file() else named


def check_show_options(options: Namespace) -> None:
    """Raise a problem for options that exclude each other."""
    if options.out and not options.plot:
        raise problem_error(
            "usage",
            "--out names the file of --plot",
            hint="to write the recipe into a file, add > FILE; titanrun cp RECIPE.yaml RECIPE.toml "
            "writes it as TOML",
        )
    if options.minimal and (options.path or options.sources or options.resolved):
        raise problem_error(
            "usage",
            "--minimal shows the whole recipe",
            hint="omit the path, --sources and --resolved",
        )
    if options.model and (options.path or options.sources or options.minimal or options.resolved):
        raise problem_error(
            "usage",
            "--model shows the modules of the model and nothing else",
            hint="omit the path and the other options",
        )


def parse_known_path(text: str, resolved: Resolved) -> DataPath:
    """Parse a path that the resolved recipe must have."""
    try:
        path = parse_path(text)
    except PathSyntaxError as mistake:
        raise problem_error("usage", f"'{text}' is not a path: {mistake.message}") from None
    data = dump_config(resolved.run)
    known = {
        format_path(leaf[:length])
        for leaf, _ in list_data_leaves(data)
        for length in range(1, len(leaf) + 1)
    }
    if format_path(path) not in known:
        meant = find_closest(text, known)
        raise problem_error(
            "usage",
            f"the recipe has no '{text}'",
            hint=f"did you mean '{meant}'?" if meant else None,
        )
    return path


def format_value_at(resolved: Resolved, path: DataPath) -> str:
    """Format the resolved recipe, or its value at `path`."""
    if not path:
        return resolved.text
    value = find_value(dump_config(resolved.run), path)
    if isinstance(value, dict):
        return to_yaml(value)
    if isinstance(value, list) and value:
        return "".join(f"{line}\n" for line in iter_block_lines(value))
    return f"{format_yaml_scalar(value)}\n"


def iter_value_json(resolved: Resolved, path: DataPath) -> Iterator[str]:
    """Yield the resolved recipe, or its value at `path`, as JSON.

    Infinity and NaN are text.
    """
    value = find_value(dump_config(resolved.run), path)
    yield json.dumps(replace_nonfinite(value), indent=2, ensure_ascii=False) + "\n"


def iter_source_json(resolved: Resolved, path: DataPath) -> Iterator[str]:
    """Yield one JSON object per value, with its source."""
    values = dict(list_data_leaves(dump_config(resolved.run)))
    for leaf, source in load_sources(resolved, path).items():
        entry = {"path": format_path(leaf), "value": replace_nonfinite(values[leaf]), **source}
        yield json.dumps(entry, ensure_ascii=False) + "\n"


def load_sources(resolved: Resolved, path: DataPath) -> dict[DataPath, Mapping[str, Any]]:
    """Return the source of each value below `path`.

    Those of a run's resolved.yaml are the ones that the run has recorded.
    """
    found = {
        leaf: source
        for leaf, source in collect_value_sources(resolved).items()
        if leaf[: len(path)] == path
    }
    report: Any = build_source_report(found, resolved.tree, [])["values"]
    return {leaf: report[format_path(leaf)] for leaf in found}


def format_source(source: Mapping[str, Any]) -> str:
    """Format the source of a value, with the places that it shadows."""
    place = source.get("file")
    text = (
        source["source"]
        if place is None
        else place
        if source["source"] == "override"
        else f"{place}:{source['line']}:{source['column']}"
    )
    shadowed = source.get("shadowed")
    return f"{text}  (over {', '.join(shadowed)})" if shadowed else str(text)


def replace_nonfinite(value: object) -> object:
    """Return data that JSON can represent."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(child) for key, child in value.items()}
    if isinstance(value, list):
        return [replace_nonfinite(child) for child in value]
    return (
        format_yaml_scalar(value)
        if isinstance(value, float) and not math.isfinite(value)
        else value
    )


def format_values_with_sources(resolved: Resolved, path: DataPath) -> str:
    """Format one line per value: path, value, source, and the shadowed values."""
    values = dict(list_data_leaves(dump_config(resolved.run)))
    rows = [
        (format_path(leaf), format_yaml_scalar(values[leaf]), format_source(source))
        for leaf, source in load_sources(resolved, path).items()
    ]
    terminal = get_terminal_width()
    if terminal is None:
        return "".join(format_source_rows(rows, None))
    # columns as wide as one section needs: the longest path of all leaves no room for its source
    sections = groupby(rows, key=lambda row: SECTION_PATTERN.match(row[0])[0])  # type: ignore[index]
    return "".join(line for _, group in sections for line in format_source_rows([*group], terminal))


def format_source_rows(rows: list[tuple[str, str, str]], width: int | None) -> Iterator[str]:
    """Yield rows of path, value and source in columns, each on one line if it fits `width`."""
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(max(len(value) for _, value, _ in rows), MAX_VALUE_WIDTH)
    for path, value, source in rows:
        columns = f"{path:<{path_width}}  {value:<{value_width}}  {source}"
        if width is None or len(columns) <= width:
            yield f"{columns}\n"
            continue
        # what is too long for its columns ends at the right edge
        pairs = (f"{path:<{path_width}}  {value}", f"{path}  {value}")
        flush = (f"{pair}  {source:>{max(0, width - len(pair) - 2)}}" for pair in pairs)
        line = next((text for text in flush if len(text) <= width), None)
        yield f"{line or wrap_to_width(f'{path}  {value}{NEXT_LINE}{source}', width)}\n"
