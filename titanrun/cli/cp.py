"""`titanrun cp`: copy a shipped recipe with its comments, or write a recipe as YAML or TOML."""

from pathlib import Path

from titanrun.cli.arguments import CommandParser
from titanrun.cli.messages import print_detail
from titanrun.cli.new_file import get_schema_path, write_new_recipe
from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.config.read_source import FORMATS
from titanrun.recipe.editing.convert_format import convert_recipe_text
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.reference.shipped_recipes import format_portable_recipe

EXAMPLES = """  titanrun cp llama3_debug my.yaml
  titanrun cp llama3_8b my.toml  the same as TOML
  titanrun cp my.yaml my.toml    a recipe of yours"""
SCHEMA_COMMENTS = {"yaml": "# yaml-language-server: $schema=", "toml": "#:schema "}


def run(arguments: list[str]) -> int:
    """Copy the recipe; an existing file is never overwritten."""
    parser = CommandParser(
        "cp",
        "Copy a shipped recipe to a new file, or write a recipe as TOML or YAML. Comments stay, in "
        "another format those at the top. Nothing is overwritten.",
        EXAMPLES,
    )
    parser.add_argument("name", help="a shipped recipe, see titanrun ls recipes, or a recipe file")
    parser.add_argument("file", help="the new file; its suffix is the format")
    options = parser.parse_args(arguments)
    target = Path(options.file)
    source, text = read_recipe_to_copy(options.name, target)
    if target.is_dir():
        target = target / source.name
    if target.suffix not in FORMATS:
        raise problem_error(
            "usage", f"'{target}' does not end in .yaml or .toml", hint="name it .yaml or .toml"
        )
    formats = FORMATS[source.suffix], FORMATS[target.suffix]
    if formats[0] != formats[1]:
        schema = f"{SCHEMA_COMMENTS[formats[1]]}{get_schema_path(target)}\n"
        text = schema + convert_recipe_text(text, str(source), source=formats[0], target=formats[1])
    write_new_recipe(target, text)
    print_detail(options, f"read {source}")
    if not options.quiet:
        print(target)
    return 0


def read_recipe_to_copy(name: str, target: Path) -> tuple[Path, str]:
    """Return the file of a recipe that is copied, and its text.

    It is one of the user's only if the copy has another format, and is in the same folder, so that
    the files which it names are the same.

    Raises:
        ProblemsFound: There is no such recipe.
    """
    file = Path(name)
    is_converted = file.suffix in FORMATS and FORMATS[file.suffix] != FORMATS.get(target.suffix)
    if file.is_file() and is_converted and not target.is_dir():
        if file.resolve().parent != target.resolve().parent:
            raise problem_error(
                "usage",
                f"'{target}' is in another folder than '{file}'",
                hint="write it beside the recipe, whose paths are relative to its folder",
            )
        return file, file.read_text(encoding="utf-8")
    suffix = ".toml" if target.suffix == ".toml" else ".yaml"
    try:
        entry = shipped_recipes.get_shipped_recipe(name, suffix=suffix)
    except ProblemsFound:
        if suffix == ".yaml":
            raise
        entry = shipped_recipes.get_shipped_recipe(name)
    return entry.path, format_portable_recipe(entry, schema=get_schema_path(target))
