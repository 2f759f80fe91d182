"""Check that a run directory can be created, without creating it, and that it is not lost."""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from titanrun.components.checkpoints.spec.storage_path import is_storage_path
from titanrun.config.problems import Problem
from titanrun.recipe.recipe import Recipe

DUMP_FOLDER_PATH = ("dump_folder",)
WRITABLE_FOLDER_HINT = "name a writable folder"
# launchers whose machines vanish with what is on their disks
BORROWED_MACHINES = ("kubernetes", "skypilot")


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


def find_lost_run_problems(recipe: Recipe, *, is_submitted: bool = False) -> list[Problem]:
    """Return a problem if a run would be lost with the machines that it borrows.

    Its directory must lie in a volume of the launch section. One machine of SkyPilot may save its
    checkpoints to an address instead; several need a run directory that all of them mount. A
    resolved recipe names none: that is a problem only of a run that `is_submitted`.
    """
    launch, saving, written = recipe.launch, recipe.checkpoint, recipe.dump_folder
    if launch.name not in BORROWED_MACHINES or (written is None and not is_submitted):
        return []
    has_address = saving.enable and is_storage_path(saving.folder)
    if launch.name == "skypilot" and launch.num_nodes == 1 and has_address:
        return []
    volumes = [volume.path for volume in getattr(launch, "volumes", ())]
    if written is not None and is_in_volume(PurePosixPath(str(written)), volumes):
        return []
    message = (
        "dump_folder is not set, so that the run would be lost with its machines"
        if written is None
        else f"'{written}' is in no volume of the launch section, and lost with the machines"
    )
    hint = f"set dump_folder to a folder in {volumes[0]}" if volumes else "set launch.volumes"
    return [Problem("conflict", message, DUMP_FOLDER_PATH, hint=hint)]


def is_in_volume(folder: PurePosixPath, volumes: Sequence[str]) -> bool:
    """Return whether a folder lies in one of the volumes."""
    return ".." not in folder.parts and any(folder.is_relative_to(path) for path in volumes)


def path_exists(path: Path) -> bool:
    """Return whether a path exists; False if it is too long or a folder above cannot be read."""
    try:
        return path.exists()
    except OSError:
        return False
