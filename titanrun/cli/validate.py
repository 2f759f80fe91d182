"""`titanrun validate`: find all problems of recipes, without torch, network or writes."""

import sys
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from titanrun.cli.arguments import CommandParser, split_overrides
from titanrun.cli.color import style_text
from titanrun.cli.consent import format_code_list, list_untrusted_code, remember_all
from titanrun.cli.messages import print_detail, print_note, print_source_files
from titanrun.cli.next_command import print_next
from titanrun.cli.stdin_argument import add_stdin_option, read_stdin_argument
from titanrun.cli.terminal import get_terminal_width
from titanrun.config.diagnostics import render_problems
from titanrun.config.pluralize import pluralize
from titanrun.config.problems import Problem, problem_error
from titanrun.config.sarif import DocumentationSite
from titanrun.config.source_streams import is_stream
from titanrun.config.tree import format_path
from titanrun.config.trust import TRUST_FLAG
from titanrun.launch.host_info import CpuInfo, count_accelerators, read_cpu_info
from titanrun.launch.launch_env import get_environment, should_use_color
from titanrun.recipe.resolving.emulated_dtype import find_emulated_dtype
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.validation_levels import (
    VALIDATION_LEVELS,
    ValidationLevel,
    ValidationResult,
    add_build_problems,
    merge_stage_results,
    validate_file,
)

if TYPE_CHECKING:
    from titanrun.recipe.editing.autofix import FixResult

SUMMARY = (
    "Find all problems of recipes and sweeps. Needs no GPU, no torch and no network; "
    "without --fix it writes nothing."
)
EXAMPLES = """  titanrun validate recipes/*.yaml
  titanrun validate my.yaml training.steps=50
  titanrun validate sweep.yaml                   also the recipe of each point of a sweep
  titanrun validate my.yaml --world-size 64      check the parallel degrees for 64 processes
  titanrun validate my.yaml --level environment  also paths, tokenizer and packages
  titanrun validate my.yaml --level build        also build the model, without memory
  titanrun validate my.yaml --fix                fix spellings, quoted numbers, on for true ...
  titanrun validate - --stdin-name my.yaml       the text on standard input
  titanrun validate my.yaml --format github      annotations in a pull request"""
LEVEL_HELP = (
    "validation level, each after the previous ones: syntax (reads and composes), schema (keys "
    "and values), rules (the default: conflicting settings), environment (paths, data, "
    "tokenizers, packages), build (the model, in a process with torch)"
)


def run(arguments: list[str]) -> int:
    """Return 0 without problems, 1 for warnings under --strict, else the first error's code."""
    options, overrides = parse_validate_options(arguments)
    done = apply_fixes(overrides, options) if options.fix else None
    code = 0
    found: list[Problem] = []
    for file in options.recipes:
        print_detail(options, f"{file}: level {options.level}")
        examined = validate_all_stages(file, overrides, options.level, options.world_size)
        print_source_files(options, examined.tree)
        found += examined.problems
        code = code or examined.exit_code
        if not examined.problems and not options.quiet and options.format == "text":
            print(f"{file}: {style_text('ok', 'good', sys.stderr)}", file=sys.stderr)
        if options.format == "text":
            print_what_is_trusted(examined, options)
    print_validation(found, options.format)
    summary = format_fix_summary(found, done)
    if summary is not None and options.format == "text":
        print_note(options, f"\n{summary}")
    elif code == 0 and options.format == "text" and len(options.recipes) == 1:
        print_next_command(examined, options.recipes[0], overrides, options)
    return code or (1 if options.strict and found else 0)


def print_next_command(
    examined: ValidationResult, file: str, overrides: list[str], options: Namespace
) -> None:
    """Print the command that runs a valid recipe; there is none for a text on standard input."""
    if is_stream(file):
        return
    run = None if examined.resolved is None else examined.resolved.run
    is_submitted = run is not None and run.launch.is_submitted
    command = "sweep" if examined.is_sweep else "launch" if is_submitted else "train"
    runs = examined.stage_runs or ((examined.resolved,) if examined.resolved else ())
    is_refused = any(list_untrusted_code(one, submits=is_submitted) for one in runs)
    print_next(options, command, *([TRUST_FLAG] if is_refused else []), file, *overrides)


def print_what_is_trusted(examined: ValidationResult, options: Namespace) -> None:
    """Print what a run of the recipe takes on trust; with --trust, remember the consent."""
    runs = examined.stage_runs or ((examined.resolved,) if examined.resolved else ())
    if options.trust:
        remember_all(runs)
    lines = [
        f"reads environment variable {name}: {format_path(path)}"
        for run in runs
        for path, names in run.variables.items()
        for name in names
    ]
    lines += [line for run in runs for line in format_code_list(run)]
    for line in dict.fromkeys(lines):
        print_note(options, f"  {line}")


def parse_validate_options(arguments: list[str]) -> tuple[Namespace, list[str]]:
    """Parse the command line into options and overrides."""
    overrides, others = split_overrides(arguments)
    parser = CommandParser(
        "validate",
        SUMMARY,
        EXAMPLES,
    )
    parser.add_argument(
        "recipes", nargs="+", metavar="RECIPE", help="recipes or sweeps (.yaml or .toml)"
    )
    parser.add_argument("--level", choices=VALIDATION_LEVELS, default="rules", help=LEVEL_HELP)
    parser.add_argument(
        "--world-size",
        type=int,
        metavar="N",
        help="validate the recipe for N processes on all nodes",
    )
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors (exit 1)")
    parser.add_format_option(
        "all formats except text go to stdout", choices=("text", "json", "github", "sarif")
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="write certain corrections into the RECIPE files: other spellings and former names, "
        "one wrong letter in a name, quoted numbers; no other file is changed",
    )
    parser.add_trust_option()
    add_stdin_option(parser)
    parser.allow_overrides()
    options = parser.parse_intermixed_args(others)
    options.recipes = read_stdin_argument(options.recipes, options)
    if options.fix:
        check_writable(options.recipes)
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size {options.world_size} is below 1")
    return options, overrides


def check_writable(files: list[str]) -> None:
    """Raise for a recipe that --fix cannot write: it is no file."""
    for file in files:
        if is_stream(file):
            raise problem_error(
                "usage", f"--fix writes files, but {file} is not a file", hint="omit --fix"
            )


def validate_all_stages(
    file: str, overrides: list[str], level: ValidationLevel, ranks: int | None
) -> ValidationResult:
    """Validate one recipe, with every stage of it."""
    examined = validate_file_at_level(file, overrides, level, ranks)
    if examined.is_sweep:
        return validate_sweep_file(file, overrides, level, ranks)
    if not examined.stages:
        return examined
    each = [
        validate_file_at_level(f"{file}#{stage}", overrides, level, ranks)
        for stage in examined.stages
    ]
    return merge_stage_results(examined, each)


def validate_sweep_file(
    file: str, overrides: list[str], level: ValidationLevel, ranks: int | None
) -> ValidationResult:
    """Validate a sweep file with its points."""
    from titanrun.launch.worker_query import find_build_problems
    from titanrun.sweep.validate_sweep import validate_sweep

    return validate_sweep(
        file,
        overrides,
        get_environment(),
        level=level,
        ranks=ranks,
        find_build_problems=partial(find_build_problems, ranks=ranks),
    )


def validate_file_at_level(
    file: str, overrides: list[str], level: ValidationLevel, ranks: int | None
) -> ValidationResult:
    """Validate one recipe in this process, and build it in another if requested."""
    examined = validate_file(
        file, overrides, level=level, environment=get_environment(), ranks=ranks
    )
    if level not in ("environment", "build"):
        return examined
    from titanrun.launch.worker_query import find_build_problems, find_kernel_problems

    examined = add_build_problems(examined, find_kernel_problems)
    examined = add_build_problems(examined, partial(find_slow_cpu, read_cpu_info()))
    if level == "environment":
        return examined
    return add_build_problems(examined, partial(find_build_problems, ranks=ranks))


def find_slow_cpu(cpu: CpuInfo, resolved: Resolved) -> list[Problem]:
    """Return the warning of bf16 for a run on this CPU if that emulates it."""
    run = resolved.run
    accelerators = 0 if run.device == "cpu" else count_accelerators(get_environment())
    is_here = not accelerators and not run.launch.is_submitted
    found = find_emulated_dtype(run) if is_here and cpu.emulates_bf16 else None
    return [] if found is None else [found]


def find_fixable_problems(
    file: str, overrides: list[str], options: Namespace
) -> tuple[Problem, ...]:
    """Return the problems that --fix may correct; nothing is built for them."""
    examined = validate_file(
        file,
        overrides,
        level=options.level,
        environment=get_environment(),
        ranks=options.world_size,
    )
    found = [
        problem
        for stage in examined.stages
        for problem in find_fixable_problems(f"{file}#{stage}", overrides, options)
    ]
    return (*examined.problems, *found)


def apply_fixes(overrides: list[str], options: Namespace) -> "FixResult":
    """Correct the files, and report what was written and what was left."""
    from titanrun.recipe.editing.autofix import fix_files, format_fix

    done = fix_files(options.recipes, lambda file: find_fixable_problems(file, overrides, options))
    for made in done.applied_fixes:
        print_note(options, f"fixed {format_fix(made)}")
    for left, reason in done.skipped_fixes.items():
        print_note(options, f"left  {format_fix(left)} ({reason})")
    return done


def format_fix_summary(problems: list[Problem], done: "FixResult | None") -> str | None:
    """Format what --fix could correct, or has corrected. Return None if there is nothing to say.

    Args:
        problems: All that were found, after the corrections.
        done: The corrections. None without --fix.
    """
    if not problems:
        return None
    count = len(problems)
    if done is None:
        fixable = sum(problem.fix is not None for problem in problems)
        which = f"these {count} problems" if count > 1 else "this problem"
        share = f"{fixable} of {which}" if fixable < count else which
        return f"--fix can correct {share}" if fixable else None
    if done.applied_fixes:
        made, left = len(done.applied_fixes), pluralize(count, "problem is", "problems are")
        return f"--fix corrected {pluralize(made, 'mistake')}; {left} left"
    if not done.skipped_fixes:
        return "--fix corrected nothing: no problem has a certain correction"
    return None


def find_site(output_format: str) -> DocumentationSite | None:
    """Return the documentation that a format links to: only SARIF links to any."""
    if output_format != "sarif":
        return None
    from titanrun.recipe.reference.documentation_site import find_documentation_site

    return find_documentation_site()


def print_validation(problems: list[Problem], output_format: str) -> None:
    """Print problems for a person to stderr, for a program to stdout."""
    if output_format != "text":
        sys.stdout.write(
            render_problems(problems, output_format=output_format, site=find_site(output_format))  # type: ignore[arg-type]
        )
    elif problems:
        sys.stderr.write(
            render_problems(
                problems,
                use_color=should_use_color(sys.stderr.isatty()),
                columns=get_terminal_width(sys.stderr),
            )
        )
