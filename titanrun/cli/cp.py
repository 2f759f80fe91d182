"""`titanrun cp`: copy a shipped recipe with its comments."""

from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.config.problems import problem_error
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.shipped_recipes import format_portable_recipe

EXAMPLES = "  titanrun cp llama3_debug my.yaml"


def run(arguments: list[str]) -> int:
    """Copy the recipe; an existing file is never overwritten."""
    parser = CommandParser(
        "cp",
        "Copy a shipped recipe to a new file, with its comments; nothing is overwritten.",
        EXAMPLES,
    )
    parser.add_argument("name", help="a shipped recipe, see titanrun ls recipes")
    parser.add_argument("file", help="the new file")
    options = parser.parse_args(arguments)
    target = Path(options.file)
    entry = shipped_recipes.get_shipped_recipe(
        options.name, suffix=".toml" if target.suffix == ".toml" else ".yaml"
    )
    if target.is_dir():
        target = target / entry.path.name
    if target.suffix != entry.path.suffix:
        raise problem_error(
            "usage", f"'{target}' does not end in {entry.path.suffix}, as {entry.name} does"
        )
    write_new_recipe(target, format_portable_recipe(entry, schema=get_schema_path(target)))
    print_detail(options, f"read {entry.path}")
    if not options.quiet:
        print(target)
    return 0
