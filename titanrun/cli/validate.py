"""`titanrun validate`: everything that is wrong with recipes, without torch, network or writes."""

import sys
from argparse import Namespace
from functools import partial

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.terminal import columns
from titanrun.cli.voice import detail, detail_files, note
from titanrun.config.problems import Problem
from titanrun.config.render import render
from titanrun.launch.environment import colour_wanted, environment
from titanrun.recipe.levels import LEVELS, Examined, Level, built, examine_file, joined

SUMMARY = "Find everything that is wrong with recipes. Needs no GPU, no torch, no network; without --fix it writes nothing."
EXAMPLES = """  titanrun validate recipes/*.yaml
  titanrun validate my.yaml training.steps=50
  titanrun validate my.yaml --world-size 64          whether the degrees of parallelism fit 64 processes
  titanrun validate my.yaml --level environment      paths, tokenizer and packages too
  titanrun validate my.yaml --level build            builds the model too, without memory
  titanrun validate my.yaml --fix                    wrong spellings, quoted numbers, on for true ...
  titanrun validate my.yaml --format github          annotations in a pull request"""
LEVEL_HELP = (
    "how far to go, each level after the ones before it: syntax (reads and composes), schema (keys and values), "
    "rules (the default: what does not go together), environment (paths, data, tokenizers, packages), "
    "build (the model, in a process with torch)"
)


def run(arguments: list[str]) -> int:
    """0: no problem; 1: warnings under --strict; else the exit code of the first error."""
    overrides, others = split_overrides(arguments)
    parser = Parser(
        "validate",
        SUMMARY,
        EXAMPLES,
    )
    parser.add_argument("recipes", nargs="+", metavar="RECIPE", help="recipes (.yaml or .toml)")
    parser.add_argument("--level", choices=LEVELS, default="rules", help=LEVEL_HELP)
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="check the recipe for N processes, on all nodes together",
    )
    parser.add_argument("--strict", action="store_true", help="warnings fail too (exit 1)")
    parser.add_argument(
        "--format",
        choices=("text", "json", "github", "sarif"),
        default="text",
        help="all but text go to stdout",
    )
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="short for --format json"
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="write the corrections that are certain into the RECIPE files; no other file",
    )
    parser.takes_trust()
    parser.takes_overrides()
    options = parser.parse_intermixed_args(others)
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size counts processes, and {options.world_size} is none")
    if options.fix:
        fix(overrides, options)
    code = 0
    found: list[Problem] = []
    for file in options.recipes:
        detail(options, f"{file}: level {options.level}")
        examined = examine_whole(file, overrides, options.level, options.world_size)
        detail_files(options, examined.tree)
        found += examined.problems
        code = code or examined.exit_code
        if not examined.problems and not options.quiet and options.format == "text":
            print(f"{file}: ok", file=sys.stderr)
    show(found, options.format)
    fixable = sum(problem.fix is not None for problem in found)
    if fixable and not options.fix and options.format == "text":
        note(options, f"\n{fixable} of {len(found)} can be corrected by --fix")
    return code or (1 if options.strict and found else 0)


def examine_whole(file: str, overrides: list[str], level: Level, ranks: int | None) -> Examined:
    """One recipe, every stage of it where it has some."""
    examined = examine(file, overrides, level, ranks)
    if not examined.stages:
        return examined
    each = [examine(f"{file}#{stage}", overrides, level, ranks) for stage in examined.stages]
    return joined(examined, each)


def examine(file: str, overrides: list[str], level: Level, ranks: int | None) -> Examined:
    """One recipe, examined in this process, and built in another where that is asked for."""
    examined = examine_file(file, overrides, level=level, environment=environment(), ranks=ranks)
    if level not in ("environment", "build"):
        return examined
    from titanrun.launch.try_build import try_build, try_kernels

    examined = built(examined, try_kernels)
    if level == "environment":
        return examined
    return built(examined, partial(try_build, ranks=ranks))


def examine_quickly(file: str, overrides: list[str], options: Namespace) -> tuple[Problem, ...]:
    """The problems whose corrections --fix may make: nothing is built for them."""
    examined = examine_file(
        file, overrides, level=options.level, environment=environment(), ranks=options.world_size
    )
    found = [
        problem
        for stage in examined.stages
        for problem in examine_quickly(f"{file}#{stage}", overrides, options)
    ]
    return (*examined.problems, *found)


def fix(overrides: list[str], options: Namespace) -> None:
    """Correct the files, and tell what was written and what was left."""
    from titanrun.recipe.fixing import fix_files, fix_text

    done = fix_files(options.recipes, lambda file: examine_quickly(file, overrides, options))
    for made in done.made:
        note(options, f"fixed {fix_text(made)}")
    for left, reason in done.left.items():
        note(options, f"left  {fix_text(left)} ({reason})")


def show(problems: list[Problem], format: str) -> None:
    """Problems for a person on stderr, for a program on stdout."""
    if format != "text":
        sys.stdout.write(render(problems, format=format))  # type: ignore[arg-type]
    elif problems:
        sys.stderr.write(
            render(problems, colour=colour_wanted(sys.stderr.isatty()), columns=columns(sys.stderr))
        )
