"""Decision which open files are recipes: other YAML and TOML files get no diagnostics."""

import re
from collections.abc import Sequence
from pathlib import Path

from titanrun.config.read_source import FORMATS

SCHEMA_LINE = re.compile(
    r"#(?:[ ]*yaml-language-server:[ ]*\$schema=|:schema[ ]+)\S*recipe\.schema\.json"
)
VERSION_KEY = re.compile(r"^version[ ]*[:=]", re.MULTILINE)
RECIPE_KEY = re.compile(
    r"^(?:(?:model|extends|stages)[ ]*[:=]|\[\[?(?:model|stages)\b)", re.MULTILINE
)


def is_recipe(path: str, text: str, folders: Sequence[str]) -> bool:
    """Return whether a file is a recipe.

    Its first line names the recipe schema, or it has the keys of a recipe, or it is below one of
    `folders`.
    """
    if Path(path).suffix.lower() not in FORMATS:
        return False
    first = text.partition("\n")[0].lstrip("\ufeff")
    if SCHEMA_LINE.match(first):
        return True
    if any(Path(path).is_relative_to(folder) for folder in folders):
        return True
    return bool(VERSION_KEY.search(text) and RECIPE_KEY.search(text))
