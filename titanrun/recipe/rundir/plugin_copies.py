"""Copies of plug-in files in a run directory, which a resumed run and its checkpoints use."""

import os
import shlex
from pathlib import Path

from titanrun.config.problems import ProblemsFound, problem_error
from titanrun.recipe.plugin_files import PLUGIN_FOLDER, PluginFile
from titanrun.recipe.resolving.read_recipe import find_plugin_files
from titanrun.recipe.resolving.resolve import Resolved, attach_origin
from titanrun.recipe.rundir.checkpoint_lookup import locate_checkpoint_folder
from titanrun.recipe.rundir.run_progress import find_last_saved_step


def copy_plugin_files(resolved: Resolved, folder: Path) -> None:
    """Write the plug-in files of a recipe into `plugins/` of its run directory."""
    for file in find_plugin_files(resolved.tree):
        target = get_copy(file, folder)
        if target.is_file() and target.read_bytes() == file.content:
            continue
        target.parent.mkdir(mode=0o700, exist_ok=True)
        part = target.with_name(f"{target.name}.part")
        part.write_bytes(file.content)
        part.replace(target)


def find_changed_plugin(folder: Path, resolved: Resolved) -> PluginFile | None:
    """Return the plug-in file of a recipe whose copy in a run directory has other content."""
    for file in find_plugin_files(resolved.tree):
        copy = get_copy(file, folder)
        if copy.is_file() and copy.read_bytes() != file.content:
            return file
    return None


def build_changed_plugin_error(folder: Path, file: PluginFile, resolved: Resolved) -> ProblemsFound:
    """Build the problem of a run that would go on with other code than its first part had."""
    place = locate_checkpoint_folder(folder, resolved.run.checkpoint.folder)
    step = find_last_saved_step(place)
    if step is None:
        going_on = f"delete the run, which has no checkpoint: titanrun runs rm {folder} --yes"
    else:
        # on the command line a plug-in is relative to the working directory
        plugins = f"plugins=[{os.path.relpath(file.path)}]"
        start = [f"{folder}/checkpoint/step-{step}", f"dump_folder={folder}-2", plugins, "--trust"]
        going_on = (
            f"go on with this file and all else in a new one: titanrun resume {shlex.join(start)}; "
            f"titanrun resume {folder} goes on with the run's copy of the file"
        )
    found = problem_error(
        "conflict",
        f"'{folder}' holds a run with another content of plug-in '{file.entry}'",
        path=file.code.path,
        hint=f"name another folder, or {going_on}",
    )
    return ProblemsFound([attach_origin(each, resolved.tree) for each in found.problems])


def get_copy(file: PluginFile, folder: Path) -> Path:
    """Return where a run directory has its copy of a plug-in file."""
    return folder / PLUGIN_FOLDER / file.path.name
