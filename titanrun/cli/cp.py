"""`titanrun cp`: copy a shipped recipe, comments and all."""

from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.new_file import schema_for, write_new
from titanrun.cli.voice import detail
from titanrun.config.problems import fail
from titanrun.recipe import catalogue
from titanrun.recipe.movable import movable_text

EXAMPLES = "  titanrun cp llama3_debug my.yaml"


def run(arguments: list[str]) -> int:
    """Copy; an existing file is never overwritten."""
    parser = Parser(
        "cp",
        "Copy a shipped recipe to a file of your own; comments are kept, nothing is overwritten.",
        EXAMPLES,
    )
    parser.add_argument("name", help="a shipped recipe, see titanrun ls recipes")
    parser.add_argument("file", help="the new file")
    options = parser.parse_args(arguments)
    target = Path(options.file)
    entry = catalogue.find(options.name, suffix=".toml" if target.suffix == ".toml" else ".yaml")
    if target.is_dir():
        target = target / entry.path.name
    if target.suffix != entry.path.suffix:
        raise fail("usage", f"'{target}' does not end in {entry.path.suffix}, as {entry.name} does")
    write_new(target, movable_text(entry, schema=schema_for(target)))
    detail(options, f"read {entry.path}")
    if not options.quiet:
        print(target)
    return 0
