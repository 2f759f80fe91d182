"""Files that a command writes for the user: always new, nothing is overwritten."""

import os
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.recipe.reference import shipped_recipes

SCHEMA_FOLDER = ".titanrun"


def write_new_file(target: Path, text: str) -> None:
    """Create `target` with `text`. Raise ProblemsFound if it exists or cannot be written."""
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise problem_error("file", f"'{target}' already exists", hint="use a new file") from None
    except OSError as error:
        raise problem_error(
            "file", f"cannot write '{target}': {(error.strerror or str(error)).lower()}"
        ) from None


def write_new_recipe(target: Path, text: str) -> None:
    """Create `target`, and the schema that its editor line names where nothing else has it.

    Raises:
        ProblemsFound: It exists or cannot be written.
    """
    write_new_file(target, text)
    schema = target.parent / get_schema_path(target)
    if schema.parent.name != SCHEMA_FOLDER:
        return
    shipped = shipped_recipes.get_recipe_schema_path().read_bytes()
    if not schema.is_file() or schema.read_bytes() != shipped:
        schema.parent.mkdir(exist_ok=True)
        schema.write_bytes(shipped)


def get_schema_path(target: Path) -> str:
    """Return the path of the schema for editors, relative to the new file.

    Within a clone it is the clone's. Elsewhere it is a copy in `.titanrun`, in the nearest folder
    above that has one, else beside the file: the path of an installation is wrong on another
    machine.
    """
    schema, folder = shipped_recipes.get_recipe_schema_path().resolve(), target.resolve().parent
    around = (folder, *folder.parents)
    if schema.parents[1] not in around:
        copies = [place / SCHEMA_FOLDER / schema.name for place in around]
        schema = next((copy for copy in copies if copy.is_file()), copies[0])
    return Path(os.path.relpath(schema, folder)).as_posix()
