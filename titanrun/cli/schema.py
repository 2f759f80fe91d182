"""`titanrun schema`: the JSON Schemas of recipes, for editors, and of what titanrun writes, for programs."""

import sys
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.plugin_option import takes_plugins, use_plugins
from titanrun.cli.voice import detail
from titanrun.recipe.schemas import SCHEMAS, file_name, schema_text

EXAMPLES = """  titanrun schema > recipe.schema.json
  titanrun schema problem              one line of validate --format json
  titanrun schema --write schemas      all of them, into this folder
  titanrun schema --plugins my_plugin > mine.schema.json"""
SUMMARY = "A JSON Schema (2020-12): of recipes, with which editors complete and check, or of what titanrun writes for programs."


def run(arguments: list[str]) -> int:
    """Print a schema, or write all into a folder."""
    parser = Parser("schema", SUMMARY, EXAMPLES)
    parser.add_argument(
        "name",
        nargs="?",
        choices=tuple(SCHEMAS),
        default="recipe",
        help=f"one of {', '.join(SCHEMAS)}; default: recipe",
    )
    parser.add_argument(
        "--write", metavar="FOLDER", help="write all schemas into this folder, which is made"
    )
    takes_plugins(parser)
    options = parser.parse_args(arguments)
    use_plugins(options)
    if options.write is None:
        detail(options, f"generated from the settings of this titanrun: {options.name}")
        sys.stdout.write(schema_text(options.name))
        return 0
    folder = Path(options.write)
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        path = folder / file_name(name)
        path.write_text(schema_text(name), encoding="utf-8")
        if not options.quiet:
            print(path)
    return 0
