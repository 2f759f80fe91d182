"""Files that a command gives to the user: always new, nothing is overwritten."""

from pathlib import Path

from titanrun.config.problems import fail


def write_new(target: Path, text: str) -> None:
    """Create `target` with `text`. Raises ProblemsFound where it exists or cannot be written."""
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise fail("file", f"'{target}' exists already", help="name a new file") from None
    except OSError as error:
        raise fail("file", f"cannot write '{target}': {error.strerror}") from None
