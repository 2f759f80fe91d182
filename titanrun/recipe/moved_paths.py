"""Input paths of a saved recipe that have moved since it ran: `--moved OLD=NEW`.

A run names the folder of its model, its data and the run that it continues as they were found. What
the command line says about them holds for every saved recipe that it reads, and in the processes
that it starts: weights may come from the run of another run.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from titanrun.config.json_text import parse_json
from titanrun.config.lazy_module import LazyModule
from titanrun.config.problems import DataPath, problem_error
from titanrun.config.tree import Node, iter_nodes, replace_text

if TYPE_CHECKING:
    from titanrun.components.checkpoints.spec import storage_path
else:
    # importing pydantic takes longer than completing a word may
    storage_path = LazyModule("titanrun.components.checkpoints.spec.storage_path")

MOVED_FLAG = "--moved"
# the paths that the command line gives for this process and those it starts, as JSON
MOVED_VARIABLE = "TITANRUN_MOVED"
PATH_KEYS = frozenset(
    {"chat_template", "hf_assets_path", "initial_load_path", "path", "teacher", "template"}
)


def parse_moved_path(text: str) -> tuple[str, str]:
    """Return the old and the new path of an option's value OLD=NEW.

    Raises:
        ProblemsFound: It has another form, or nothing is at the new path.
    """
    old, _, new = text.partition("=")
    if not old or not new:
        raise problem_error(
            "usage",
            f"{MOVED_FLAG} is the old and the new path, not '{text}'",
            hint=f"write {MOVED_FLAG} OLD=NEW, such as {MOVED_FLAG} models/base=models/llama",
        )
    if not storage_path.is_storage_path(new) and not Path(new).exists():
        raise problem_error(
            "usage",
            f"{MOVED_FLAG} says that '{old}' is at '{new}' now, but nothing is there",
            hint="name the place where it is now",
        )
    return old, new


def read_moved_paths() -> dict[str, str]:
    """Return the new paths by the old ones, for this process and the one before it."""
    text = os.environ.get(MOVED_VARIABLE)
    try:
        found = parse_json(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def find_moved_paths(tree: Node, moved: Mapping[str, str]) -> Iterator[tuple[DataPath, str]]:
    """Yield the settings of a recipe whose path has moved, with the path to use."""
    for path, node in iter_nodes(tree) if moved else ():
        keys = [key for key in path if isinstance(key, str)]
        if isinstance(node.value, str) and keys and keys[-1] in PATH_KEYS:
            new = find_new_path(node.value, moved)
            if new is not None:
                yield path, new


def find_new_path(named: str, moved: Mapping[str, str]) -> str | None:
    """Return where a path is now, None if neither it nor a folder that it is in has moved."""
    for old, new in moved.items():
        if named == old:
            return new
        if any(map(storage_path.is_storage_path, (named, old))):
            continue
        place, before = Path(named).absolute(), Path(old).absolute()
        # what is at the new place has been replaced already
        if place.is_relative_to(Path(new).absolute()) or not place.is_relative_to(before):
            continue
        return str(Path(new) / place.relative_to(before))
    return None


def use_moved_paths(tree: Node) -> Node:
    """Return the tree of a saved recipe with the paths where its inputs are now."""
    for path, new in list(find_moved_paths(tree, read_moved_paths())):
        tree = replace_text(tree, path, new)
    return tree


def suggest_moved(named: str) -> str:
    """Return how to say where a missing path of a saved recipe is now."""
    return f"if it was moved or renamed, add {MOVED_FLAG} {quote(named)}=NEW"
