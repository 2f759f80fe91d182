"""A shipped recipe as it can stand in any folder."""

import posixpath
import re

from titanrun.config.source import read_source
from titanrun.config.tree import find
from titanrun.recipe.catalogue import SHIPPED, Entry

SCHEMA_LINE = re.compile(r"^(# yaml-language-server: \$schema=|#:schema )\S+", re.MULTILINE)


def movable_text(entry: Entry, *, schema: str) -> str:
    """The recipe as it can stand in any folder: what it extends is named on the shelf, and its editor line names `schema`."""
    text = entry.path.read_text(encoding="utf-8")
    extends = find(read_source(str(entry.path)), ("extends",))
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
