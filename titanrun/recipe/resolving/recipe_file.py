"""The file of a recipe that a command line names."""

from collections.abc import Collection
from pathlib import Path, PurePath

from titanrun.config.compose import is_absent
from titanrun.config.problems import problem_error
from titanrun.config.read_source import FORMATS
from titanrun.config.suggest import find_closest
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.multi_stage import split_stage
from titanrun.recipe.rundir.run_files import RESOLVED


def find_recipe_file(file: str) -> str:
    """Return the path of a recipe: `file` itself, or the shipped recipe of that name.

    A file comes first, and where `NAME.yaml` exists, `NAME` is no shipped recipe.

    Raises:
        ProblemsFound: A shipped recipe was meant and is not named.
    """
    path, stage = split_stage(file)
    check_not_run_directory(path)
    if not is_absent(path) or any(not is_absent(path + suffix) for suffix in FORMATS):
        return file
    names = {
        name: entry.path for entry in shipped_recipes.list_shipped_recipes() for name in entry.names
    }
    if path in names:
        return f"{names[path]}#{stage}" if stage is not None else str(names[path])
    check_not_meant_shipped(path, names)
    return file


def check_not_meant_shipped(path: str, names: Collection[str]) -> None:
    """Raise for the file name of a shipped recipe, and for what resembles its name."""
    suffix = PurePath(path).suffix
    name = path.removesuffix(suffix) if suffix in FORMATS else path
    if suffix in FORMATS and name in names:
        hint = f"titanrun ships it: write {name}, or titanrun cp {name} {path} for a copy"
        raise problem_error("file", f"file not found: {path}", hint=hint)
    meant = find_closest(path, names) if suffix not in FORMATS else None
    if meant is not None:
        message = f"no file and no shipped recipe is called {path}"
        raise problem_error("file", message, hint=f"did you mean '{meant}'?")


def check_not_run_directory(path: str) -> None:
    """Raise for a run directory or a checkpoint, which holds a recipe."""
    recipe = Path(path) / RESOLVED
    try:
        is_run = recipe.is_file()
    except (OSError, ValueError):  # reading the file reports the reason
        return
    if is_run:
        hint = f"its recipe is {recipe}; to go on with the run: titanrun resume {path}"
        raise problem_error("file", f"{path} is a folder of a run, not a recipe", hint=hint)
