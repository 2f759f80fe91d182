"""`titanrun plan`: what a run on many ranks will need and do, worked out on a laptop."""

import json
import sys

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.terminal import columns, fitted
from titanrun.cli.voice import detail_files
from titanrun.config.problems import fail
from titanrun.config.render import render
from titanrun.distributed.degrees import degrees_of
from titanrun.launch.ask_worker import ask_worker
from titanrun.launch.environment import colour_wanted, environment
from titanrun.recipe.plan.devices import DEVICES
from titanrun.recipe.plan.layout import Layout, Part
from titanrun.recipe.plan.report import as_data, as_text
from titanrun.recipe.resolve import resolve

SUMMARY = (
    "Work out what a run on N ranks needs and does: mesh, batches, memory a rank, traffic, checkpoints. Needs torch, but no GPU: the model "
    "is laid out without memory, on ranks that are not there."
)
EXAMPLES = """  titanrun plan recipes/llama3_8b.yaml --world-size 8
  titanrun plan my.yaml --world-size 64 --device h200
  titanrun plan my.yaml --world-size 256 parallelism.tensor_parallel_degree=8
  titanrun plan my.yaml --world-size 64 --json"""


def run(arguments: list[str]) -> int:
    """0: planned; else the exit code of the first error in the recipe."""
    overrides, others = split_overrides(arguments)
    parser = Parser("plan", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="a recipe (.yaml or .toml)")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="processes on all nodes together; default: what the recipe says, else 1",
    )
    parser.add_argument(
        "--device",
        choices=sorted(DEVICES),
        default="h100",
        help="the accelerator each process has; default: h100",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.takes_trust()
    parser.takes_overrides()
    options = parser.parse_intermixed_args(others)
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size counts processes, and {options.world_size} is none")
    resolved = resolve(
        options.recipe, overrides, environment=environment(), ranks=options.world_size
    )
    detail_files(options, resolved.tree)
    ranks = options.world_size or resolved.run.launch.ranks or 1
    degrees = degrees_of(resolved.run.parallelism, ranks)
    if degrees is None or degrees.ranks != ranks:
        raise fail(
            "conflict",
            f"the degrees of parallelism do not fill {ranks} ranks",
            path=("parallelism",),
            help="give --world-size",
        )
    parts = ask_worker("measure_parts", resolved, ranks=ranks, what="laying the model out")
    layers = [Part(*sizes) for sizes in parts["layers"]]
    layout = Layout(resolved.run, degrees, Part(*parts["embedding"]), layers, Part(*parts["head"]))
    if resolved.warnings and not options.quiet:
        sys.stderr.write(
            render(
                resolved.warnings,
                colour=colour_wanted(sys.stderr.isatty()),
                columns=columns(sys.stderr),
            )
        )
    device = DEVICES[options.device]
    print(
        json.dumps(as_data(layout, device))
        if options.json
        else fitted(as_text(layout, device), columns())
    )
    return 0
