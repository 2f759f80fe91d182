"""`titanrun cat`: print a shipped recipe with its comments."""

import sys

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail
from titanrun.recipe.reference import shipped_recipes

EXAMPLES = """  titanrun cat llama3_debug
  titanrun cat llama3_debug.toml"""


def run(arguments: list[str]) -> int:
    """Print the file unchanged."""
    parser = CommandParser("cat", "Print a shipped recipe with its comments.", EXAMPLES)
    parser.add_argument("name", help="a shipped recipe, see titanrun ls recipes")
    options = parser.parse_args(arguments)
    path = shipped_recipes.get_shipped_recipe(options.name).path
    print_detail(options, f"read {path}")
    sys.stdout.write(path.read_text(encoding="utf-8"))
    return 0
