"""`titanrun data`: tokenise the data of a recipe, look at it before a run does, and care for what is tokenised."""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import Parser, split_overrides
from titanrun.cli.data_views import built_lines, index_lines, sample_lines, stats_lines, svg_text
from titanrun.cli.guard import print_problems
from titanrun.cli.voice import note
from titanrun.config.problems import EXIT_OF_CODE, ProblemsFound, fail
from titanrun.config.suggest import closest, listing
from titanrun.launch.ask_worker import as_problem
from titanrun.launch.environment import colour_wanted, environment
from titanrun.recipe.levels import in_tree
from titanrun.recipe.resolve import Resolved, resolve
from titanrun.recipe.run_files import RUNS

EXAMPLES = """  titanrun data build recipe.yaml                                 tokenise now what a run would tokenise
  titanrun data show recipe.yaml -n 3                             the first rows, what counts in the loss in colour
  titanrun data show recipe.yaml --row 17 --section validation
  titanrun data stats recipe.yaml                                 lengths, fill and duplicates
  titanrun data stats recipe.yaml --out lengths.svg
  titanrun data verify                                            every index in runs/.data
  titanrun data prune cache/tokens --yes"""
SUMMARY = (
    "Tokenise the data of a recipe, look at it before a run does, and care for what is tokenised."
)
SHARED = f"{RUNS}/.data"


def run(arguments: list[str]) -> int:
    """The exit code of one of the subcommands."""
    known: dict[str, Callable[[list[str]], int]] = {
        "build": build,
        "show": show,
        "stats": stats,
        "verify": verify,
        "prune": prune,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = Parser("data", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{listing(known, last='or')}; each explains itself with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="what it takes")
    asked = parser.parse_args(arguments).action
    meant = closest(asked, known)
    help = f"did you mean '{meant}'?" if meant else f"it does {listing(known, last='and')}"
    raise fail("usage", f"titanrun data does not know '{asked}'", help=help)


def build(arguments: list[str]) -> int:
    """Tokenise what is not tokenised yet."""
    parser = Parser(
        "data build",
        "Tokenise the data of a recipe into training.data_cache, unless it is there.",
        EXAMPLES,
    )
    options, resolved = recipe_options(parser, arguments)
    sys.stdout.writelines(built_lines(asked_of_recipe("build", options, resolved)))
    return 0


def show(arguments: list[str]) -> int:
    """Rows as text."""
    parser = Parser(
        "data show",
        "Rows as a run will see them, as text, and what all of them hold. What counts in the loss is in colour.",
        EXAMPLES,
    )
    parser.add_argument(
        "-n",
        "--count",
        type=int,
        default=3,
        metavar="N",
        help="rows of each dataset, in the order of training (3)",
    )
    parser.add_argument("--row", type=int, metavar="R", help="this row instead")
    parser.add_argument(
        "--section", choices=("training", "validation"), help="rows of this section only"
    )
    parser.add_argument("--json", action="store_true", help="one object a dataset")
    options, resolved = recipe_options(parser, arguments)
    if options.count < 0 or (options.row or 0) < 0:
        raise fail("usage", "rows are counted from 0", help="give 0 or more")
    found = asked_of_recipe(
        "show", options, resolved, count=options.count, row=options.row, section=options.section
    )
    if options.section and options.section not in {entry["section"] for entry in found}:
        raise fail(
            "usage",
            f"the recipe has no data for {options.section}",
            help="set validation.enable: true and validation.dataset",
        )
    shown = [
        entry for entry in found if options.section in (None, entry["section"].partition(".")[0])
    ]
    if options.row is not None and not any(entry["samples"] for entry in shown):
        ranges = " and ".join(
            f"{entry['section']} has rows 0 to {entry['rows'] - 1}" for entry in shown
        )
        raise fail("usage", f"there is no row {options.row}", help=ranges)
    if options.json:
        sys.stdout.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in found)
    else:
        sys.stdout.writelines(sample_lines(found, colour=colour_wanted(sys.stdout.isatty())))
    return 0


def stats(arguments: list[str]) -> int:
    """Numbers and histograms."""
    parser = Parser(
        "data stats", "How long documents are, how full rows, and what is there twice.", EXAMPLES
    )
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="",
        help="draw the lengths of documents into this file, which ends in .svg",
    )
    parser.add_argument("--json", action="store_true", help="one object a dataset")
    options, resolved = recipe_options(parser, arguments)
    if options.out and Path(options.out).suffix != ".svg":
        raise fail(
            "usage", f"'{options.out}' is not an SVG file", help="name a file that ends in .svg"
        )
    found = asked_of_recipe("stats", options, resolved)
    if options.json:
        sys.stdout.writelines(json.dumps(entry) + "\n" for entry in found)
    elif options.out:
        Path(options.out).write_text(svg_text(found), encoding="utf-8")
        print(options.out)
    else:
        sys.stdout.writelines(stats_lines(found))
    return 0


def verify(arguments: list[str]) -> int:
    """Read every index through."""
    parser = Parser(
        "data verify",
        "Whether what is tokenised is whole, and made of the files that are there now.",
        EXAMPLES,
    )
    options = folder_options(parser, arguments)
    found = asked("verify", options, folder=options.folder)
    sys.stdout.writelines(
        json.dumps(entry) + "\n" if options.json else index_lines(entry) for entry in found
    )
    if not found:
        note(options, f"nothing is tokenised in '{options.folder}'")
    return EXIT_OF_CODE["data"] if any(entry["damage"] for entry in found) else 0


def prune(arguments: list[str]) -> int:
    """Remove what is no longer of use."""
    summary = "Remove what was tokenised of files that are gone or have changed, and what is damaged. Without --yes it only says which."
    parser = Parser("data prune", summary, EXAMPLES)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="everything that is tokenised there")
    which.add_argument("--days", type=float, metavar="N", help="what no run has opened for N days")
    parser.add_argument("--yes", action="store_true", help="remove it")
    options = folder_options(parser, arguments)
    found = asked(
        "prune", options, folder=options.folder, all=options.all, days=options.days, yes=options.yes
    )
    sys.stdout.writelines(
        json.dumps(entry) + "\n" if options.json else index_lines(entry) for entry in found
    )
    freed = sum(entry["bytes"] for entry in found) / 1024**2
    note(
        options,
        f"{len(found)} removed, {freed:.1f} MiB"
        if options.yes
        else f"{len(found)} would go, {freed:.1f} MiB; --yes removes them",
    )
    return 0


def recipe_options(parser: Parser, arguments: list[str]) -> tuple[Namespace, Resolved]:
    """The options, and the recipe that they name. Raises ProblemsFound where its data would lie in a run directory."""
    overrides, others = split_overrides(arguments)
    parser.add_argument("recipe", help="a recipe, or the resolved.yaml of a run")
    parser.takes_overrides()
    options = parser.parse_args(others)
    resolved = resolve(options.recipe, overrides, environment=environment(), check_inputs=True)
    if resolved.warnings and not options.quiet:
        print_problems(resolved.warnings)
    if resolved.run.training.data_cache is None:
        help = f"add training.data_cache={SHARED}, here and where you train"
        raise fail(
            "usage",
            "with dump_folder set, data is tokenised into the run directory, which does not exist yet",
            help=help,
        )
    return options, resolved


def folder_options(parser: Parser, arguments: list[str]) -> Namespace:
    """The options of what looks at a folder."""
    parser.add_argument(
        "folder", nargs="?", default=SHARED, help=f"a folder of tokenised data ({SHARED})"
    )
    parser.add_argument("--json", action="store_true", help="one object an index")
    options = parser.parse_args(arguments)
    if not Path(options.folder).is_dir():
        raise fail(
            "usage",
            f"there is no folder '{options.folder}'",
            help="name what training.data_cache names",
        )
    return options


def asked_of_recipe(action: str, options: Namespace, resolved: Resolved, **more: Any) -> Any:
    """What the worker answers about a recipe; its problems are shown in the recipe."""
    try:
        return asked(action, options, resolved=resolved.text, **more)
    except ProblemsFound as found:
        raise ProblemsFound([in_tree(problem, resolved) for problem in found.problems]) from None


def asked(action: str, options: Namespace, **request: Any) -> Any:
    """What a process with torch answers. Raises ProblemsFound where it does not."""
    sys.stdout.flush()
    text = json.dumps({"action": action, "quiet": options.quiet, **request})
    done = subprocess.run(
        [sys.executable, "-m", "titanrun.worker.data"],
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise fail(
            "internal",
            f"looking at the data broke with exit code {done.returncode}",
            help="its last words stand above",
        )
    answer = json.loads(done.stdout)
    if answer["problems"]:
        raise ProblemsFound([as_problem(item) for item in answer["problems"]])
    return answer["answer"]
