"""`titanrun plan`: estimate memory, communication and batch sizes without GPUs."""

import json
import re
import sys
from argparse import Namespace

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.color import Style, style_text
from titanrun.cli.hub_datasets import record_recipe_datasets
from titanrun.cli.hub_models import ALL_PARTS, CONFIG_ONLY, fetch_recipe_models
from titanrun.cli.messages import print_source_files
from titanrun.cli.plan_search import propose_layouts
from titanrun.cli.stdin_argument import add_stdin_option, read_stdin_argument
from titanrun.cli.terminal import get_terminal_width, wrap_to_width
from titanrun.config.diagnostics import render_problems
from titanrun.config.exit_codes import EXIT_DIFFERS
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import problem_error
from titanrun.distributed.spec.parallel_dims import resolve_parallel_dims
from titanrun.launch.launch_env import get_environment, should_use_color
from titanrun.launch.worker_query import query_worker
from titanrun.recipe.plan.devices import DEFAULT_DEVICE, DEVICES
from titanrun.recipe.plan.plan_layout import ModuleSize, PlanLayout
from titanrun.recipe.plan.plan_report import format_plan, plan_to_dict
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.teacher import find_teacher_model

VERDICT_PATTERN = re.compile(r"(?:(?<=: )fits|(?<=: )does not fit)$|^warning:", re.MULTILINE)
SUMMARY = (
    "Estimate a run on N ranks: mesh, batches, memory per rank, communication, checkpoints. "
    "Exits with 1 if it does not fit. "
    "Needs torch, but no GPU: the model is built without memory, on simulated ranks."
)
EXAMPLES = """  titanrun plan recipes/llama3_8b.yaml --world-size 8
  titanrun plan my.yaml --world-size 64 --device h200
  titanrun plan my.yaml --world-size 256 parallelism.tensor_parallel_degree=8
  titanrun plan my.yaml --world-size 64 --search
  titanrun plan my.yaml --world-size 64 --json"""


def run(arguments: list[str]) -> int:
    """Return 0 if the run fits, 1 if not, else the exit code of the first error in the recipe."""
    options, overrides = parse_plan_options(arguments)
    parts = ALL_PARTS if options.fetch else CONFIG_ONLY
    fetch_recipe_models(options.recipe, overrides, options, parts=parts)
    if options.fetch:
        record_recipe_datasets(options.recipe, overrides, options)
    resolved = resolve_recipe(
        options.recipe, overrides, environment=get_environment(), ranks=options.world_size
    )
    print_source_files(options, resolved.tree)
    ranks = options.world_size or resolved.run.launch.world_size or 1
    if options.search:
        return propose_layouts(options, overrides, resolved, ranks)
    degrees = resolve_parallel_dims(resolved.run.parallelism, ranks)
    if degrees is None or degrees.world_size != ranks:
        raise problem_error(
            "conflict",
            f"the parallel degrees do not match {pluralize(ranks, 'rank')}",
            path=("parallelism",),
            hint="give --world-size",
        )
    sizes = query_worker("measure_memory", resolved, ranks=ranks, description="building the model")
    layers = [ModuleSize(*layer) for layer in sizes["layers"]]
    layout = PlanLayout(
        resolved.run,
        degrees,
        ModuleSize(*sizes["embedding"]),
        layers,
        ModuleSize(*sizes["head"]),
        find_teacher_model(resolved.run),
    )
    if resolved.warnings and not options.quiet:
        sys.stderr.write(
            render_problems(
                resolved.warnings,
                use_color=should_use_color(sys.stderr.isatty()),
                columns=get_terminal_width(sys.stderr),
            )
        )
    data = plan_to_dict(layout, DEVICES[options.device])
    print(
        json.dumps(data)
        if options.json
        else colorize_plan(wrap_to_width(format_plan(layout, data), get_terminal_width()))
    )
    return 0 if data["fits"] else EXIT_DIFFERS


def colorize_plan(text: str) -> str:
    """Color the verdict and the warnings of a plan."""
    styles: dict[str, Style] = {"fits": "good", "does not fit": "bad", "warning:": "warning"}
    return VERDICT_PATTERN.sub(lambda found: style_text(found[0], styles[found[0]]), text)


def parse_plan_options(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Parse the command line into options and overrides."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser("plan", SUMMARY, EXAMPLES)
    parser.add_argument("recipe", help="a recipe (.yaml or .toml)")
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="processes on all nodes; default: that of the recipe, else 1",
    )
    parser.add_argument(
        "--device",
        choices=sorted(DEVICES),
        default=DEFAULT_DEVICE,
        help=f"the accelerator of each process; default: {DEFAULT_DEVICE}",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="propose up to 5 layouts of the ranks that fit, as overrides; if none fits, the "
        "nearest one, and what to change",
    )
    parser.add_argument(
        "--fetch",
        action="store_true",
        help="fetch all files of a model that is named as hub:OWNER/NAME, not only config.json",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_trust_option()
    add_stdin_option(parser)
    parser.allow_overrides()
    options = parser.parse_intermixed_args(others)
    [options.recipe] = read_stdin_argument([options.recipe], options)
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size {options.world_size} is below 1")
    return options, overrides
