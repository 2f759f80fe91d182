"""The shipped recipes of one run each; those with stages are runs by their stages."""

import re
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"
RUN_RECIPES = sorted(
    path
    for path in RECIPES.iterdir()
    if path.suffix in (".yaml", ".toml")
    and re.search("^stages:", path.read_text(encoding="utf-8"), re.MULTILINE) is None
)
