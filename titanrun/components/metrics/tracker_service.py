"""Helpers of trackers of other projects: package import and the id of a resumed run."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from titanrun.config.problems import problem_error

RUN_ID = "run_id"


def import_tracker_package(module: str, *, extra: str) -> Any:
    """Return the module that a tracker needs.

    Raises:
        ProblemsFound: A problem `usage` with the install command if a package is missing.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise problem_error(
            "usage",
            f"the tracker {extra} needs a package that is not installed: {error.name}",
            path=("metrics", "trackers"),
            hint=f'pip install "titanrun[{extra}]"',
        ) from error


def get_or_create_run_id(folder: Path, create_id: Callable[[], str]) -> str:
    """Return the id of the run in a tracker's folder, from `create_id` at the first start."""
    file = folder / RUN_ID
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    found = create_id()
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(found + "\n", encoding="utf-8")
    return found
