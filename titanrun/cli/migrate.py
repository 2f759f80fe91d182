"""`titanrun migrate`: convert older recipes and configurations of other programs."""

import sys
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.error_boundary import print_problems
from titanrun.cli.messages import print_note
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.cli.next_command import print_next
from titanrun.cli.terminal import get_terminal_width
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.launch.launch_env import should_use_color

EXAMPLES = """  titanrun migrate my.yaml                                show the changes as a patch
  titanrun migrate my.yaml --check                        exit 1 if anything would change
  titanrun migrate my.yaml --write                        change it; comments stay
  titanrun migrate --check recipes/*.yaml                 several at once
  titanrun migrate --from torchtitan llama3_8b.toml -o llama3_8b.yaml  a TOML file of torchtitan 0.2
  titanrun migrate --from torchtitan llama3_8b.toml > llama3_8b.yaml  report on the terminal
  titanrun migrate --from torchtitan outputs/config.json  a config dump of torchtitan 0.2.2 or later
  titanrun migrate --from torchtune 8B_lora.yaml -o lora.yaml  full, LoRA and DPO recipes of 0.6
  titanrun migrate qlora.yaml -o mine.yaml                detects the program, here axolotl
  titanrun migrate llama3_lora_sft.yaml -o mine.yaml      or LLaMA-Factory"""
SOURCE_PROGRAMS = ("torchtitan", "torchtune", "axolotl", "llamafactory")


def run(arguments: list[str]) -> int:
    """Return 0 if done or nothing to do, 1 for findings, 2 for errors.

    Findings are: --check found a change, a key was rejected, or the new recipe is invalid.
    """
    options = parse_migrate_options(arguments)
    if not options.origin and not options.check and not options.write:
        options.origin = detect_origin(options)
    if options.origin:
        if len(options.files) > 1:
            raise problem_error(
                "usage",
                f"a configuration of {options.origin} is converted alone",
                hint="name one file",
            )
        return migrate_from_program(options, options.files[0])
    if options.output:
        check_is_recipe_file(options.files[0])
        raise problem_error(
            "usage",
            "--output requires a configuration of another program",
            hint="use --write to change the file in place",
        )
    return max(update_or_report(options, file) for file in options.files)


def detect_origin(options: Namespace) -> str | None:
    """Return the program of the first file that is a configuration of another one."""
    from titanrun.recipe.migrate.program_detection import detect_file_program

    for file in options.files:
        if origin := detect_file_program(file):
            print_note(options, f"{file}: a configuration of {origin}")
            return origin
    return None


def check_is_recipe_file(file: str) -> None:
    """Raise if a file is not a recipe, or if its former names cannot be replaced."""
    from titanrun.recipe.migrate.recipe_update import build_recipe_update

    build_recipe_update(file)


def parse_migrate_options(arguments: list[str]) -> Namespace:
    """Parse the command line."""
    parser = CommandParser(
        "migrate",
        "Convert a recipe of an older version, or a configuration of another program.",
        EXAMPLES,
    )
    parser.add_argument(
        "files",
        nargs="+",
        metavar="file",
        help="a recipe, or several; or a configuration of another program, detected in .yaml and "
        ".toml files; torchtitan's .json dumps need --from",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="only report whether anything would change"
    )
    what.add_argument(
        "--write", action="store_true", help="change only the necessary parts of the file in place"
    )
    what.add_argument(
        "--from",
        dest="origin",
        metavar="PROGRAM",
        choices=SOURCE_PROGRAMS,
        help="source program: torchtitan, torchtune, axolotl, llamafactory",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        help="file of the converted recipe; default: stdout; nothing is overwritten",
    )
    return parser.parse_args(arguments)


def update_or_report(options: Namespace, file: str) -> int:
    """Update a recipe; where there are several, report an unreadable one and let others follow."""
    try:
        return update_recipe_version(options, file)
    except ProblemsFound as found:
        if len(options.files) == 1:
            raise
        print_problems(found.problems)
        return found.exit_code


def update_recipe_version(options: Namespace, file: str) -> int:
    """Check or change the recipe itself, or print a patch to stdout."""
    from titanrun.recipe.migrate.recipe_update import build_recipe_update, write_update
    from titanrun.recipe.resolving.resolve import RECIPE_VERSION

    found = build_recipe_update(file)
    if not found.renames:
        print_note(options, f"{file}: already version {RECIPE_VERSION}")
        return 0
    if options.write:
        write_update(found)
        for problem in found.renames:
            print_note(options, f"{problem.origin}: {problem.message}: changed")
        return 0
    if options.check:
        print_problems(found.renames)
        return 1
    sys.stdout.write(found.diff)
    return 0


def migrate_from_program(options: Namespace, file: str) -> int:
    """Write the recipe to stdout or a file, and the report to stderr."""
    from titanrun.recipe.migrate.migration import migrate_file
    from titanrun.recipe.migrate.migration_report import format_migration_report
    from titanrun.recipe.migrate.program_detection import PROGRAMS

    target = Path(options.output) if options.output else None
    if target is not None and target.suffix not in (".yaml", ".yml"):
        raise problem_error(
            "usage", f"'{target}' does not end in .yaml", hint="recipes are migrated to YAML"
        )
    schema = [f"# yaml-language-server: $schema={get_schema_path(target)}"] if target else []
    head = [
        *schema,
        f"# Migrated from {options.origin}'s {Path(file).name} by titanrun migrate.",
    ]
    migration = migrate_file(
        file,
        PROGRAMS[options.origin],
        recipe_name=str(target or "the recipe"),
        header_lines=head,
    )
    if target is None:
        sys.stdout.write(migration.text)
        sys.stdout.flush()
    else:
        write_new_recipe(target, migration.text)
    report = format_migration_report(
        migration,
        file,
        is_quiet=options.quiet,
        columns=get_terminal_width(sys.stderr),
        use_color=should_use_color(sys.stderr.isatty()),
    )
    sys.stderr.write(report)
    if target is not None:
        print_next(options, "validate", str(target), "--level", "environment")
    return migration.exit_code
