"""What trackers of other projects share: their package, and the id under which a run goes on there."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.config.problems import fail

RUN_ID = "run_id"


def package(module: str, *, extra: str) -> Any:
    """The module that a tracker needs. Raises a problem `usage` with the install line where a package is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise fail(
            "usage",
            f"the tracker {extra} needs a package that is not installed: {error.name}",
            path=("metrics", "trackers"),
            help=f'pip install "titanrun[{extra}]"',
        ) from error


def kept_id(folder: Path, make: Callable[[], str]) -> str:
    """The id of the run in a tracker's folder; `make` gives it at the first start, a resume finds it."""
    file = folder / RUN_ID
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    found = make()
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(found + "\n", encoding="utf-8")
    return found
