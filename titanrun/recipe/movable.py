"""Portable copies of shipped recipes."""

import posixpath
import re

from titanrun.config.read_source import read_source
from titanrun.config.tree import find_node
from titanrun.recipe.reference.shipped_recipes import SHIPPED, ShippedRecipe

SCHEMA_LINE = re.compile(r"^(# yaml-language-server: \$schema=|#:schema )\S+", re.MULTILINE)


def format_portable_recipe(entry: ShippedRecipe, *, schema: str) -> str:
    """Return the text of a shipped recipe that works in any folder.

    `extends` entries become `shipped:` names, and the editor line names `schema`.
    """
    text = entry.path.read_text(encoding="utf-8")
    extends = find_node(read_source(str(entry.path)), ("extends",))
    lines = text.split("\n")
    items = (
        [] if extends is None else extends.value if isinstance(extends.value, list) else [extends]
    )
    for item in reversed(items):
        row, start, end = item.origin.line - 1, item.origin.column - 1, item.origin.end_column - 1
        on_shelf = posixpath.normpath(
            posixpath.join(posixpath.dirname(entry.name), str(item.value))
        )
        named = lines[row][start:end].replace(str(item.value), f"{SHIPPED}:{on_shelf}")
        lines[row] = lines[row][:start] + named + lines[row][end:]
    return SCHEMA_LINE.sub(lambda found: found[1] + schema, "\n".join(lines))
