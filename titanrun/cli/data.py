"""`titanrun data`: tokenize the data of a recipe, inspect it, and manage its cache."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from titanrun.cli.arguments import CommandParser
from titanrun.cli.data_output import (
    format_token_index,
    iter_build_lines,
    iter_sample_lines,
    iter_stats_lines,
    plot_length_histogram,
)
from titanrun.cli.data_pin import pin_data
from titanrun.cli.data_pipeline import (
    add_pipeline_options,
    check_pipeline_options,
    write_pipeline,
)
from titanrun.cli.data_recipe import SHARED_CACHE, find_cache_folder, parse_recipe_options
from titanrun.cli.data_slurm import (
    add_slurm_options,
    check_slurm_options,
    check_workers,
    submit_parts,
)
from titanrun.cli.messages import print_note
from titanrun.cli.next_command import print_next
from titanrun.config.exit_codes import EXIT_DATA
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.suggest import find_closest, format_word_list
from titanrun.launch.launch_env import should_use_color
from titanrun.launch.torch_requirement import require_torch
from titanrun.launch.worker_command import run_worker_command
from titanrun.launch.worker_query import problem_from_dict
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import attach_recipe_origin

EXAMPLES = """  titanrun data build recipe.yaml      tokenize before the run
  titanrun data build recipe.yaml --workers 32
  titanrun data build recipe.yaml --part 3/64 --workers 32
  titanrun data build recipe.yaml --finish  after all parts
  titanrun data build recipe.yaml --slurm 64 --dry-run  all of it as Slurm jobs
  titanrun data build recipe.yaml --pipeline out.py  a program for datatrove
  titanrun data build --repair recipe.yaml  tokenize damaged data again
  titanrun data show recipe.yaml -n 3  the first sequences, tokens in the loss marked
  titanrun data show recipe.yaml --row 17 --section validation
  titanrun data stats recipe.yaml      lengths, fill and duplicates
  titanrun data stats recipe.yaml --out lengths.svg
  titanrun data pin recipe.yaml --write  the commits of Hub datasets
  titanrun data teach recipe.yaml      what the teacher of its loss predicts
  titanrun data verify                 verify every index in runs/.data
  titanrun data prune cache/tokens --yes"""
SUMMARY = "Tokenize the data of a recipe, inspect it before a run, and manage the tokenized data."


def run(arguments: list[str]) -> int:
    """Run one of the subcommands and return its exit code."""
    known: dict[str, Callable[[list[str]], int]] = {
        "build": build_data_cache,
        "show": show_data,
        "stats": show_data_stats,
        "pin": pin_data,
        "teach": teach_data,
        "verify": verify_data_cache,
        "prune": prune_data_cache,
    }
    if arguments and arguments[0] in known:
        return known[arguments[0]](arguments[1:])
    parser = CommandParser("data", SUMMARY, EXAMPLES)
    parser.add_argument(
        "action",
        metavar="action",
        help=f"{format_word_list(known, conjunction='or')}; see each with --help",
    )
    parser.add_argument("rest", metavar="argument", nargs="*", help="arguments of the subcommand")
    asked = parser.parse_args(arguments).action
    meant = find_closest(asked, known)
    hint = (
        f"did you mean '{meant}'?"
        if meant
        else f"subcommands: {format_word_list(known, conjunction='and')}"
    )
    raise problem_error("usage", f"unknown subcommand of titanrun data: '{asked}'", hint=hint)


def build_data_cache(arguments: list[str]) -> int:
    """Tokenize the data that is not tokenized yet."""
    parser = CommandParser(
        "data build",
        "Tokenize the data of a recipe into training.data_cache, unless it is cached.",
        EXAMPLES,
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="read all tokens of the cache, and tokenize anew what is damaged",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="tokenize text files in N processes, with the same result",
    )
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument(
        "--part",
        metavar="K/N",
        help="tokenize the K-th of N parts of the text files only, as one task of an array of jobs",
    )
    steps.add_argument(
        "--finish",
        action="store_true",
        help="after all parts: check that nothing is missing, and complete the index",
    )
    add_slurm_options(parser)
    add_pipeline_options(parser)
    options, resolved = parse_recipe_options(parser, arguments)
    check_slurm_options(options)
    check_pipeline_options(options)
    if options.slurm is not None:
        submit_parts(options, resolved, arguments)
        return 0
    if options.pipeline is None:
        sys.stdout.writelines(iter_build_lines(build_datasets(options, resolved)))
        return 0
    written = write_pipeline(
        options, resolved, lambda: query_recipe_data("tokenizer", options, resolved)
    )
    sys.stdout.writelines(f"{path}\n" for path in written)
    return 0


def build_datasets(options: Namespace, resolved: Resolved) -> Any:
    """Tokenize the datasets, or a part of them, and return what was built."""
    check_workers(options)
    if options.repair and (options.part or options.finish):
        raise problem_error(
            "usage",
            "--repair reads the whole index, --part and --finish do not",
            hint="use --repair with --workers only",
        )
    return query_recipe_data(
        "build",
        options,
        resolved,
        repair=options.repair,
        workers=options.workers,
        part=parse_part(options.part),
        finish=options.finish,
    )


def parse_part(text: str | None) -> tuple[int, int] | None:
    """Return K and N of a part K/N, None without one."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise problem_error(
            "usage",
            f"--part {text} is not one of N parts",
            hint="write K/N with K from 1 to N, for example 3/64",
        )
    return number, count


def show_data(arguments: list[str]) -> int:
    """Show sequences as text."""
    parser = CommandParser(
        "data show",
        "Show sequences as a run reads them, as text, and their statistics. Tokens in the loss are "
        "colored.",
        EXAMPLES,
    )
    parser.add_argument(
        "-n",
        "--count",
        type=int,
        default=3,
        metavar="N",
        help="sequences of each dataset, in training order (3)",
    )
    parser.add_argument(
        "--row", type=int, metavar="R", help="show the sequence with this index instead"
    )
    parser.add_argument(
        "--section", choices=("training", "validation"), help="sequences of this section only"
    )
    parser.add_argument("--json", action="store_true", help="one object per dataset")
    options, resolved = parse_recipe_options(parser, arguments)
    if options.count < 0 or (options.row or 0) < 0:
        name = "--count" if options.count < 0 else "--row"
        raise problem_error("usage", f"{name} is negative", hint="use 0 or more")
    found = query_recipe_data(
        "show", options, resolved, count=options.count, row=options.row, section=options.section
    )
    if options.section and options.section not in {entry["section"] for entry in found}:
        raise problem_error(
            "usage",
            f"the recipe has no data for {options.section}",
            hint="set validation.enable: true and validation.dataset",
        )
    shown = [
        entry for entry in found if options.section in (None, entry["section"].partition(".")[0])
    ]
    if options.row is not None:
        check_row(options.row, shown)
    if options.json:
        sys.stdout.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in found)
    else:
        sys.stdout.writelines(
            iter_sample_lines(found, use_color=should_use_color(sys.stdout.isatty()))
        )
    return 0


def check_row(row: int, shown: list[dict[str, Any]]) -> None:
    """Check that one of the datasets has the sequence `row`."""
    if not any(entry["samples"] for entry in shown):
        ranges = " and ".join(
            f"{entry['section']} has sequences 0 to {entry['rows'] - 1}" for entry in shown
        )
        raise problem_error("usage", f"sequence {row} not found", hint=ranges)


def show_data_stats(arguments: list[str]) -> int:
    """Show statistics and histograms."""
    parser = CommandParser("data stats", "Show document lengths, padding and duplicates.", EXAMPLES)
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        default="",
        help="plot the document lengths into this .svg file",
    )
    parser.add_argument("--json", action="store_true", help="one object per dataset")
    options, resolved = parse_recipe_options(parser, arguments)
    if options.out and Path(options.out).suffix != ".svg":
        raise problem_error(
            "usage", f"'{options.out}' is not an SVG file", hint="use a file name that ends in .svg"
        )
    found = query_recipe_data("stats", options, resolved)
    if options.json:
        sys.stdout.writelines(json.dumps(entry) + "\n" for entry in found)
    elif options.out:
        Path(options.out).write_text(plot_length_histogram(found), encoding="utf-8")
        print(options.out)
    else:
        sys.stdout.writelines(iter_stats_lines(found))
    return 0


def verify_data_cache(arguments: list[str]) -> int:
    """Verify every index."""
    parser = CommandParser(
        "data verify",
        "Check that tokenized data is complete and matches its source files.",
        EXAMPLES,
    )
    options = parse_folder_options(parser, arguments)
    found = query_data_worker("verify", options, folder=options.folder)
    sys.stdout.writelines(
        json.dumps(entry) + "\n" if options.json else format_token_index(entry) for entry in found
    )
    if not found:
        print_note(options, f"no tokenized data in '{options.folder}'")
    return EXIT_DATA if any(entry["damage"] for entry in found) else 0


def prune_data_cache(arguments: list[str]) -> int:
    """Remove indexes that are no longer used."""
    summary = (
        "Remove tokenized data whose source files are missing or changed, and damaged data. "
        "Without --yes it only lists them."
    )
    parser = CommandParser("data prune", summary, EXAMPLES)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="remove all tokenized data there")
    which.add_argument(
        "--days", type=float, metavar="N", help="remove data that no run has opened for N days"
    )
    parser.add_argument("--yes", action="store_true", help="remove it")
    options = parse_folder_options(parser, arguments)
    # also not a number
    if options.days is not None and not options.days >= 0:
        raise problem_error("usage", f"--days is {options.days:g}", hint="use 0 or more")
    found = query_data_worker(
        "prune", options, folder=options.folder, all=options.all, days=options.days, yes=options.yes
    )
    sys.stdout.writelines(
        json.dumps(entry) + "\n" if options.json else format_token_index(entry) for entry in found
    )
    freed = sum(entry["bytes"] for entry in found) / 1024**2
    print_note(
        options,
        f"{len(found)} removed, {freed:.1f} MiB"
        if options.yes
        else f"{len(found)} would be removed, {freed:.1f} MiB; --yes removes them",
    )
    return 0


def teach_data(arguments: list[str]) -> int:
    """Write what the teacher of a recipe's loss predicts, into loss.teacher_logprobs.path."""
    parser = CommandParser(
        "data teach",
        "Write the predictions of the teacher of a recipe's loss for its data into "
        "loss.teacher_logprobs.path, unless they are there.",
        EXAMPLES,
    )
    options, resolved = parse_recipe_options(parser, arguments)
    for entry in query_recipe_data("teach", options, resolved):
        state = "written to" if entry["is_new"] else "already in"
        sys.stdout.write(f"{entry['section']}: predictions {state} {entry['folder']}\n")
    print_next(options, "train", options.recipe)
    return 0


def parse_folder_options(parser: CommandParser, arguments: list[str]) -> Namespace:
    """Parse the options of a command that inspects a folder."""
    parser.add_argument(
        "folder",
        nargs="?",
        default=SHARED_CACHE,
        help=f"a folder of tokenized data, or a recipe with training.data_cache ({SHARED_CACHE})",
    )
    parser.add_argument("--json", action="store_true", help="one object per index")
    options = parser.parse_args(arguments)
    options.folder = find_cache_folder(options.folder)
    if not options.folder or not Path(options.folder).is_dir():
        raise problem_error(
            "usage",
            f"folder not found: '{options.folder}'",
            hint="pass the folder of training.data_cache",
        )
    if not os.access(options.folder, os.R_OK | os.X_OK):
        raise problem_error(
            "usage", f"'{options.folder}' cannot be read", hint="check its permissions"
        )
    return options


def query_recipe_data(action: str, options: Namespace, resolved: Resolved, **more: Any) -> Any:
    """Return the worker's answer about a recipe; its problems are located in the recipe."""
    require_torch()
    try:
        return query_data_worker(action, options, resolved=resolved.text, **more)
    except ProblemsFound as found:
        raise ProblemsFound(
            [attach_recipe_origin(problem, resolved) for problem in found.problems]
        ) from None


def query_data_worker(action: str, options: Namespace, **request: Any) -> Any:
    """Return the answer of a process with torch. Raise ProblemsFound if it fails."""
    require_torch()
    work = {"action": action, "quiet": options.quiet, **request}
    done = run_worker_command("data", work, stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise problem_error(
            "internal",
            f"data inspection failed with exit code {done.returncode}",
            hint="see its output above",
        )
    answer = json.loads(done.stdout)
    if answer["problems"]:
        raise ProblemsFound([problem_from_dict(item) for item in answer["problems"]])
    return answer["answer"]
