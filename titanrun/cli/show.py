"""`titanrun show`: a recipe with every default filled in, and where each value came from."""

import json
import math
import sys
from collections.abc import Iterator

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.guard import print_problems
from titanrun.cli.show_plot import show_plot
from titanrun.cli.terminal import columns, fitted
from titanrun.cli.voice import detail_files
from titanrun.config.base import dump
from titanrun.config.emit import block, emit, scalar
from titanrun.config.names import PathMistake, parse_path
from titanrun.config.problems import DataPath, fail
from titanrun.config.shape import value_at
from titanrun.config.suggest import closest
from titanrun.config.tree import path_text
from titanrun.launch.environment import environment
from titanrun.recipe.minimal import minimal
from titanrun.recipe.resolve import Resolved, resolve, written
from titanrun.recipe.sources import data_leaves, source_entry, sources

EXAMPLES = """  titanrun show recipes/llama3_debug.yaml
  titanrun show recipes/llama3_debug.yaml optimizer
  titanrun show recipes/llama3_debug.yaml training.seq_len
  titanrun show recipes/llama3_debug.yaml --sources optimizer.lr=1e-3
  titanrun show recipes/llama3_debug.yaml --model "converters=[{name: float8_linear, emulate: true}]"
  titanrun show recipes/llama3_debug.yaml --plot lr_scheduler
  titanrun show runs/first/resolved.yaml --minimal > recipe.yaml         only what differs from the defaults"""


def run(arguments: list[str]) -> int:
    """Print the resolved recipe, a part of it, or the source of each value."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "show", "A recipe with every default filled in and every auto decided.", EXAMPLES
    )
    parser.add_argument("recipe", help="a recipe, or the resolved.yaml of a run")
    parser.add_argument("path", nargs="?", help="a section or value, such as optimizer.lr")
    parser.add_argument("--sources", action="store_true", help="where each value came from")
    parser.add_argument(
        "--minimal", action="store_true", help="the shortest recipe that resolves to the same run"
    )
    parser.add_argument(
        "--model",
        action="store_true",
        help="the modules of the model, and what each converter took or left; needs torch",
    )
    parser.add_argument(
        "--plot", choices=("lr_scheduler",), help="the learning rate over the steps, as a picture"
    )
    parser.add_argument(
        "-o", "--out", metavar="FILE", default="", help="with --plot: draw into this SVG file"
    )
    parser.add_argument(
        "--resolved",
        action="store_true",
        help="the default: the bytes of resolved.yaml, or a part of them",
    )
    parser.add_argument(
        "--json", action="store_true", help="the same as JSON; with --sources one object a value"
    )
    parser.takes_trust()
    parser.takes_overrides()
    options = parser.parse_intermixed_args(others)
    if options.minimal and (options.path or options.sources or options.resolved):
        raise fail(
            "usage",
            "--minimal shows the whole recipe",
            help="leave out the path, --sources and --resolved",
        )
    if options.model and (options.path or options.sources or options.minimal or options.resolved):
        raise fail(
            "usage",
            "--model shows the modules of the model and nothing else",
            help="leave out the path and the other switches",
        )
    resolved = resolve(options.recipe, overrides, environment=environment())
    detail_files(options, resolved.tree)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    if options.model:
        from titanrun.cli.show_model import model_lines

        sys.stdout.write(
            fitted(
                "".join(model_lines(resolved, as_json=options.json)),
                None if options.json else columns(),
            )
        )
        return 0
    if options.plot:
        show_plot(resolved.run, options.plot, options.out)
        return 0
    if options.minimal:
        sys.stdout.write(emit(written(resolved.run, minimal(resolved.run))))
        return 0
    path = known_path(options.path, resolved) if options.path else ()
    if options.json:
        sys.stdout.writelines(
            sources_as_json(resolved, path) if options.sources else part_as_json(resolved, path)
        )
    else:
        sys.stdout.write(with_sources(resolved, path) if options.sources else part(resolved, path))
    return 0


def known_path(text: str, resolved: Resolved) -> DataPath:
    """The path that `text` spells, if the resolved recipe has it."""
    try:
        path = parse_path(text)
    except PathMistake as mistake:
        raise fail("usage", f"'{text}' is not a path: {mistake.message}") from None
    data = dump(resolved.run)
    known = {
        path_text(leaf[:length])
        for leaf, _ in data_leaves(data)
        for length in range(1, len(leaf) + 1)
    }
    if path_text(path) not in known:
        meant = closest(text, known)
        raise fail(
            "usage",
            f"the recipe has no '{text}'",
            help=f"did you mean '{meant}'?" if meant else None,
        )
    return path


def part(resolved: Resolved, path: DataPath) -> str:
    """The resolved recipe, or what stands at `path`."""
    if not path:
        return resolved.text
    value = value_at(dump(resolved.run), path)
    if isinstance(value, dict):
        return emit(value)
    if isinstance(value, list) and value:
        return "".join(f"{line}\n" for line in block(value))
    return f"{scalar(value)}\n"


def part_as_json(resolved: Resolved, path: DataPath) -> Iterator[str]:
    """The resolved recipe, or what stands at `path`, as JSON; what is infinite or no number is text."""
    value = value_at(dump(resolved.run), path)
    yield json.dumps(finite(value), indent=2, ensure_ascii=False) + "\n"


def sources_as_json(resolved: Resolved, path: DataPath) -> Iterator[str]:
    """One JSON object a value: what it is, and where it came from."""
    values = dict(data_leaves(dump(resolved.run)))
    for leaf, source in sources(resolved).items():
        if leaf[: len(path)] == path:
            entry = {"path": path_text(leaf), "value": finite(values[leaf]), **source_entry(source)}
            yield json.dumps(entry, ensure_ascii=False) + "\n"


def finite(value: object) -> object:
    """Data that JSON can hold."""
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    if isinstance(value, list):
        return [finite(child) for child in value]
    return scalar(value) if isinstance(value, float) and not math.isfinite(value) else value


def with_sources(resolved: Resolved, path: DataPath) -> str:
    """One line a value: path, value, source, and what it shadowed."""
    values = dict(data_leaves(dump(resolved.run)))
    rows = []
    for leaf, source in sources(resolved).items():
        if leaf[: len(path)] == path:
            over = f"  (over {', '.join(map(str, source.shadowed))})" if source.shadowed else ""
            rows.append((path_text(leaf), scalar(values[leaf]), f"{source}{over}"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [
        f"{name:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {source}\n"
        for name, value, source in rows
    ]
    return fitted("".join(lines), columns())
