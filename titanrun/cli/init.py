"""`titanrun init`: a commented recipe to begin with."""

from pathlib import Path

from titanrun.cli.arguments import Parser
from titanrun.cli.new_file import schema_for, write_new
from titanrun.config.problems import fail
from titanrun.config.source import FORMATS
from titanrun.recipe.starter import starter

EXAMPLES = """  titanrun init                            writes recipe.yaml
  titanrun init --model llama3:8B -o mine.yaml
  titanrun init -o mine.toml               the same as TOML"""


def run(arguments: list[str]) -> int:
    """Write the recipe; an existing file is never overwritten."""
    parser = Parser(
        "init",
        "Write a commented recipe that trains as it stands; nothing is overwritten.",
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
    options = parser.parse_args(arguments)
    target = Path(options.output)
    if target.suffix not in FORMATS:
        raise fail(
            "usage", f"'{target}' does not end in .yaml or .toml", help="name it .yaml or .toml"
        )
    write_new(
        target,
        starter(
            options.model,
            file=str(target),
            schema=schema_for(target),
            format=FORMATS[target.suffix],
        ),
    )
    if not options.quiet:
        print(target)
    return 0
