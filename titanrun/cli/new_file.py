"""Files that a command writes for the user: always new, nothing is overwritten."""

import os
from pathlib import Path

from titanrun.config.problems import problem_error
from titanrun.recipe.reference import shipped_recipes


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


def get_schema_path(target: Path) -> str:
    """Return the path of the shipped schema for editors.

    It is relative to the new file within one clone, else absolute.
    """
    schema, folder = shipped_recipes.get_recipe_schema_path().resolve(), target.resolve().parent
    within_clone = schema.parents[1] in (folder, *folder.parents)
    return os.path.relpath(schema, folder) if within_clone else str(schema)
