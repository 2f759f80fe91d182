"""`titanrun migrate`: recipes of older versions, and torchtitan's configurations, become recipes of today."""

import sys
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.init import schema_for
from titanrun.cli.new_file import write_new
from titanrun.config.problems import fail

EXAMPLES = """  titanrun migrate --from torchtitan llama3_8b.toml -o llama3_8b.yaml
  titanrun migrate --from torchtitan llama3_8b.toml > llama3_8b.yaml      the report goes to the terminal
  titanrun migrate --from torchtitan outputs/config.json                  a config dump, of 0.2.2 or later"""


def run(arguments: list[str]) -> int:
    """0: done; 1: a key was refused, or the recipe does not validate yet; 2: trouble."""
    parser = Parser("migrate", "Bring a recipe of an older version, or a configuration of torchtitan, up to date.", EXAMPLES)
    parser.add_argument("file", help="a recipe, or with --from a .toml file or .json dump of torchtitan")
    parser.add_argument("--from", dest="origin", choices=("torchtitan",), help="what the file was written for")
    parser.add_argument("-o", "--output", metavar="F", help="the new recipe; default: standard output; nothing is overwritten")
    options = parser.parse_args(arguments)
    return from_torchtitan(options.file, options.output, quiet=options.quiet)


def from_torchtitan(file: str, output: str | None, *, quiet: bool) -> int:
    """The recipe on stdout or in a file, the report on stderr."""
    from titanrun.recipe.migrate.report import report
    from titanrun.recipe.migrate.torchtitan import migrate

    target = Path(output) if output else None
    if target is not None and target.suffix not in (".yaml", ".yml"):
        raise fail("usage", f"'{target}' does not end in .yaml", help="recipes are migrated to YAML")
    schema = [f"# yaml-language-server: $schema={schema_for(target)}"] if target else []
    head = [*schema, f"# Migrated from torchtitan's {Path(file).name} by titanrun migrate."]
    migration = migrate(file, recipe=str(target or "the recipe"), head=head)
    if target is None:
        sys.stdout.write(migration.text)
        sys.stdout.flush()
    else:
        write_new(target, migration.text)
    sys.stderr.write(report(migration, file, quiet=quiet))
    return migration.exit_code
