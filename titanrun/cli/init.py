"""`titanrun init`: write a commented starter recipe."""

from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.config.problems import problem_error
from titanrun.config.read_source import FORMATS
from titanrun.recipe.reference.recipe_template import build_recipe_template

EXAMPLES = """  titanrun init               writes recipe.yaml
  titanrun init --model llama3:8B -o mine.yaml
  titanrun init --full        with every setting, commented out
  titanrun init -o mine.toml  the same as TOML"""


def run(arguments: list[str]) -> int:
    """Write the recipe; an existing file is never overwritten."""
    parser = CommandParser(
        "init",
        "Write a short commented recipe that trains without changes; nothing is overwritten.",
        EXAMPLES,
    )
    parser.add_argument(
        "--model", metavar="M", help="a family, or family:flavor, see titanrun ls models"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="F",
        default="recipe.yaml",
        help="the new file; default: recipe.yaml",
    )
    parser.add_argument(
        "--full", action="store_true", help="write every setting, the others commented out"
    )
    options = parser.parse_args(arguments)
    target = Path(options.output)
    if target.suffix not in FORMATS:
        raise problem_error(
            "usage", f"'{target}' does not end in .yaml or .toml", hint="name it .yaml or .toml"
        )
    write_new_recipe(
        target,
        build_recipe_template(
            options.model,
            file=str(target),
            schema=get_schema_path(target),
            file_format=FORMATS[target.suffix],
            is_full=options.full,
        ),
    )
    if not options.quiet:
        print(target)
    return 0
