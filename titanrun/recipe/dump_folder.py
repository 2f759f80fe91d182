"""Check that a run directory can be created, without creating it."""

import os
from pathlib import Path

from titanrun.config.problems import Problem

DUMP_FOLDER_PATH = ("dump_folder",)
WRITABLE_FOLDER_HINT = "name a writable folder"


def find_dump_folder_problems(dump_folder: str | None) -> list[Problem]:
    """Return a problem if a file is in the way of the path or its folder is not writable."""
    if dump_folder is None:
        return []
    path = Path(dump_folder)
    nearest = next((place for place in (path, *path.parents) if path_exists(place)), Path("/"))
    if not nearest.is_dir():
        what = "it is a file" if nearest == path else f"'{nearest}' is a file"
        return [
            Problem(
                "file",
                f"cannot create the run directory '{path}': {what}",
                DUMP_FOLDER_PATH,
                hint=WRITABLE_FOLDER_HINT,
            )
        ]
    if not os.access(nearest, os.W_OK | os.X_OK):
        return [
            Problem(
                "file",
                f"cannot create the run directory '{path}': '{nearest}' is not writable",
                DUMP_FOLDER_PATH,
                hint=WRITABLE_FOLDER_HINT,
            )
        ]
    return []


def path_exists(path: Path) -> bool:
    """Return whether a path exists; False if a folder above it cannot be read."""
    try:
        return path.exists()
    except PermissionError:
        return False
