"""`titanrun schema`: the JSON Schema of recipes, for editors."""

import json
import sys
from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.recipe.schema import recipe_schema

EXAMPLES = """  titanrun schema > recipe.schema.json
  titanrun schema --write schemas      then start a recipe with
                                       # yaml-language-server: $schema=schemas/recipe.schema.json"""


def run(arguments: list[str]) -> int:
    """Print the schema, or write it into a folder."""
    parser = Parser("schema", "The JSON Schema (2020-12) of recipes: editors complete and check with it.", EXAMPLES)
    parser.add_argument("--write", metavar="FOLDER", help="write recipe.schema.json into this folder")
    options = parser.parse_args(arguments)
    text = json.dumps(recipe_schema(), indent=2, ensure_ascii=False) + "\n"
    if options.write is None:
        sys.stdout.write(text)
        return 0
    folder = Path(options.write)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.schema.json").write_text(text, encoding="utf-8")
    print(folder / "recipe.schema.json")
    return 0
