"""Files that a command gives to the user: always new, nothing is overwritten."""

import os
from pathlib import Path

from titanrun.config.problems import fail
from titanrun.recipe import catalogue


def write_new(target: Path, text: str) -> None:
    """Create `target` with `text`. Raises ProblemsFound where it exists or cannot be written."""
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise fail("file", f"'{target}' exists already", help="name a new file") from None
    except OSError as error:
        raise fail(
            "file", f"cannot write '{target}': {(error.strerror or str(error)).lower()}"
        ) from None


def schema_for(target: Path) -> str:
    """The shipped schema as an editor finds it from the new file: relative within one clone, else absolute."""
    schema, folder = catalogue.schema_file().resolve(), target.resolve().parent
    within_clone = schema.parents[1] in (folder, *folder.parents)
    return os.path.relpath(schema, folder) if within_clone else str(schema)
