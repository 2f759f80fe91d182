"""`titanrun validate`: everything that is wrong with recipes, without torch, network or writes."""

import sys

from titanrun.cli.arguments import OVERRIDE_HELP, Parser, split_overrides
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.config.render import in_file_order, render
from titanrun.launch.environment import colour_wanted, environment
from titanrun.recipe.resolve import resolve

EXAMPLES = """  titanrun validate recipes/*.yaml
  titanrun validate my.yaml training.steps=50
  titanrun validate my.yaml --world-size 64          whether the degrees of parallelism fit 64 processes
  titanrun validate my.yaml --level environment      paths, tokenizer and packages too
  titanrun validate my.yaml --format github          annotations in a pull request"""


def run(arguments: list[str]) -> int:
    """0: no problem; 1: warnings under --strict; else the exit code of the first error."""
    overrides, others = split_overrides(arguments)
    parser = Parser("validate", "Find everything that is wrong with recipes. Needs no GPU, no torch, no network; writes nothing.", EXAMPLES)
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="recipes (.yaml or .toml), and " + OVERRIDE_HELP)
    parser.add_argument("--level", choices=("rules", "environment"), default="rules", help="environment: also paths, tokenizers, packages")
    parser.add_argument("--world-size", type=int, metavar="N", help="check the recipe for N processes, on all nodes together")
    parser.add_argument("--strict", action="store_true", help="warnings fail too (exit 1)")
    parser.add_argument("--format", choices=("text", "json", "github", "sarif"), default="text", help="all but text go to stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing about recipes that are fine")
    options = parser.parse_intermixed_args(others)
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size counts processes, and {options.world_size} is none")
    code, found = 0, []
    for file in options.recipes:
        problems, failed = problems_of(file, overrides, check_inputs=options.level == "environment", ranks=options.world_size)
        found += problems
        code = code or failed
        if not problems and not options.quiet and options.format == "text":
            print(f"{file}: ok", file=sys.stderr)
    show(found, options.format)
    return code or (1 if options.strict and found else 0)


def problems_of(file: str, overrides: list[str], *, check_inputs: bool, ranks: int | None) -> tuple[list[Problem], int]:
    """Errors and warnings of one recipe, in file order, and its exit code."""
    try:
        resolved = resolve(file, overrides, environment=environment(), check_inputs=check_inputs, ranks=ranks)
    except ProblemsFound as error:
        return in_file_order(error.problems), error.exit_code
    return in_file_order(resolved.warnings), 0


def show(problems: list[Problem], format: str) -> None:
    """Problems for a person on stderr, for a program on stdout."""
    if format != "text":
        sys.stdout.write(render(problems, format=format))  # type: ignore[arg-type]
    elif problems:
        sys.stderr.write(render(problems, colour=colour_wanted(sys.stderr.isatty())))
