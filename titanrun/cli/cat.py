"""`titanrun cat`: print a shipped recipe, comments and all."""

import sys

from titanrun.cli.arguments import Parser
from titanrun.cli.voice import detail
from titanrun.recipe import catalogue

EXAMPLES = """  titanrun cat llama3_debug
  titanrun cat llama3_debug.toml"""


def run(arguments: list[str]) -> int:
    """Print the file as it is."""
    parser = Parser("cat", "Print a shipped recipe as it is, comments included.", EXAMPLES)
    parser.add_argument("name", help="a shipped recipe, see titanrun ls recipes")
    options = parser.parse_args(arguments)
    path = catalogue.find(options.name).path
    detail(options, f"read {path}")
    sys.stdout.write(path.read_text(encoding="utf-8"))
    return 0
