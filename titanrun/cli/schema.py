"""`titanrun schema`: JSON Schemas of recipes, for editors, and of outputs, for programs."""

import sys
from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail
from titanrun.cli.plugin_option import add_plugins_option, use_plugins
from titanrun.recipe.schemas.all_schemas import SCHEMAS, format_schema, get_schema_file_name

EXAMPLES = """  titanrun schema > recipe.schema.json
  titanrun schema problem          one line of validate --format json
  titanrun schema --write schemas  write all of them into this folder
  titanrun schema --write site --base-url https://docs.example/schemas/0.1
  titanrun schema --plugins my_plugin > mine.schema.json"""
SUMMARY = (
    "Print a JSON Schema (2020-12) of recipes, for completion and validation in editors, or of the "
    "outputs of titanrun for programs."
)


def run(arguments: list[str]) -> int:
    """Print a schema, or write all into a folder."""
    parser = CommandParser("schema", SUMMARY, EXAMPLES)
    parser.add_argument(
        "name",
        nargs="?",
        choices=tuple(SCHEMAS),
        default="recipe",
        help=f"one of {', '.join(SCHEMAS)}; default: recipe",
    )
    parser.add_argument(
        "--write", metavar="FOLDER", help="write all schemas into this folder, which is created"
    )
    parser.add_argument(
        "--base-url",
        metavar="URL",
        help="address at which the schemas are published, for their $id",
    )
    add_plugins_option(parser)
    options = parser.parse_args(arguments)
    use_plugins(options)
    if options.write is None:
        print_detail(options, f"generated from the settings of this titanrun: {options.name}")
        sys.stdout.write(format_schema(options.name, options.base_url))
        return 0
    folder = Path(options.write)
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        path = folder / get_schema_file_name(name)
        path.write_text(format_schema(name, options.base_url), encoding="utf-8")
        if not options.quiet:
            print(path)
    return 0
