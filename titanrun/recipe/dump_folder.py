"""Whether a run directory can be made where the recipe wants it, found without making it."""

import os
from pathlib import Path

from titanrun.config.problems import Problem

PLACE = ("dump_folder",)
HELP = "name a folder that can be written"


def obstacles(named: str | None) -> list[Problem]:
    """The problem of a path at or above which a file is in the way, or a folder that nothing can be written into."""
    if named is None:
        return []
    path = Path(named)
    nearest = next((place for place in (path, *path.parents) if is_there(place)), Path("/"))
    if not nearest.is_dir():
        what = "it is a file" if nearest == path else f"'{nearest}' is a file"
        return [
            Problem("file", f"cannot make the run directory '{path}': {what}", PLACE, help=HELP)
        ]
    if not os.access(nearest, os.W_OK | os.X_OK):
        return [
            Problem(
                "file",
                f"cannot make the run directory '{path}': '{nearest}' cannot be written",
                PLACE,
                help=HELP,
            )
        ]
    return []


def is_there(path: Path) -> bool:
    """Whether something is at a path; not where a folder above it may not be looked into."""
    try:
        return path.exists()
    except PermissionError:
        return False
