"""`titanrun migrate`: recipes of older versions, and configurations of other programs, become recipes of today."""

import sys
from argparse import Namespace
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.guard import print_problems
from titanrun.cli.new_file import schema_for, write_new
from titanrun.cli.voice import note
from titanrun.config.problems import fail

EXAMPLES = """  titanrun migrate my.yaml                                              shows what would change, as a patch
  titanrun migrate my.yaml --check                                      exits 1 if anything would
  titanrun migrate my.yaml --write                                      changes it; comments stay
  titanrun migrate --from torchtitan llama3_8b.toml -o llama3_8b.yaml   a TOML file of torchtitan 0.2
  titanrun migrate --from torchtitan llama3_8b.toml > llama3_8b.yaml    the report goes to the terminal
  titanrun migrate --from torchtitan outputs/config.json                a config dump of torchtitan 0.2.2 or later
  titanrun migrate --from torchtune 8B_lora.yaml -o lora.yaml           full, LoRA and DPO recipes of torchtune 0.6
  titanrun migrate qlora.yaml -o mine.yaml                              a file that tells what it is for: axolotl's too"""
ORIGINS = ("torchtitan", "torchtune", "axolotl")


def run(arguments: list[str]) -> int:
    """0: done, or nothing to do; 1: --check found something, a key was refused, the new recipe does not validate; 2: trouble."""
    parser = Parser(
        "migrate",
        "Bring a recipe of an older version, or a configuration of another program, up to date.",
        EXAMPLES,
    )
    parser.add_argument(
        "file",
        help="a recipe, or a configuration of another program, as its .yaml or .toml file tells; torchtitan's .json dumps need --from",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="only say whether anything has to change"
    )
    what.add_argument(
        "--write", action="store_true", help="change the file; only the spans that have to change"
    )
    what.add_argument(
        "--from",
        dest="origin",
        metavar="PROGRAM",
        choices=ORIGINS,
        help="what it was written for: torchtitan, torchtune, axolotl",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        help="the new recipe made of a configuration; default: standard output; nothing is overwritten",
    )
    options = parser.parse_args(arguments)
    if not options.origin and not options.check and not options.write:
        from titanrun.recipe.migrate.programs import program_of_file

        options.origin = program_of_file(options.file)
        if options.origin:
            note(options, f"{options.file}: a configuration of {options.origin}")
    if options.origin:
        return from_program(options)
    if options.output:
        raise fail(
            "usage",
            "--output is for a recipe made of a configuration of another program",
            help="--write changes the file in its place",
        )
    return to_today(options)


def to_today(options: Namespace) -> int:
    """The recipe itself, checked, changed, or as a patch on stdout."""
    from titanrun.recipe.migrate.versions import update, write
    from titanrun.recipe.resolve import RECIPE_VERSION

    found = update(options.file)
    if not found.renames:
        note(options, f"{options.file}: already version {RECIPE_VERSION}")
        return 0
    if options.write:
        write(found)
        for problem in found.renames:
            note(options, f"{problem.origin}: {problem.message}: changed")
        return 0
    if options.check:
        print_problems(found.renames)
        return 1
    sys.stdout.write(found.diff)
    return 0


def from_program(options: Namespace) -> int:
    """The recipe on stdout or in a file, the report on stderr."""
    from titanrun.recipe.migrate.migration import migrate
    from titanrun.recipe.migrate.programs import PROGRAMS
    from titanrun.recipe.migrate.report import report

    target = Path(options.output) if options.output else None
    if target is not None and target.suffix not in (".yaml", ".yml"):
        raise fail(
            "usage", f"'{target}' does not end in .yaml", help="recipes are migrated to YAML"
        )
    schema = [f"# yaml-language-server: $schema={schema_for(target)}"] if target else []
    head = [
        *schema,
        f"# Migrated from {options.origin}'s {Path(options.file).name} by titanrun migrate.",
    ]
    migration = migrate(
        options.file, PROGRAMS[options.origin], recipe=str(target or "the recipe"), head=head
    )
    if target is None:
        sys.stdout.write(migration.text)
        sys.stdout.flush()
    else:
        write_new(target, migration.text)
    sys.stderr.write(report(migration, options.file, quiet=options.quiet))
    return migration.exit_code
