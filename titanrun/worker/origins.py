"""A problem that shows only while a run is built, at the line of the recipe that it comes from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, SourceText
from titanrun.config.tree import path_text
from titanrun.recipe.run_dir import SOURCES, read_json


def with_origins(error: BaseException, run_dir: Path) -> BaseException:
    """`error`, its problems at the places that resolved.sources.json in the run directory names for their paths."""
    if not isinstance(error, ProblemsFound):
        return error
    report = read_json(run_dir / SOURCES)
    return ProblemsFound([with_origin(problem, report) for problem in error.problems])


def with_origin(problem: Problem, report: dict[str, Any]) -> Problem:
    """The problem at its place, or as it is where it has one or none is known."""
    entry = entry_at(problem.path, report.get("values", {}))
    if problem.origin is not None or entry is None:
        return problem
    return replace(problem, origin=origin_of(entry))


def entry_at(path: DataPath, values: dict[str, Any]) -> dict[str, Any] | None:
    """What is noted about the value at `path`, else about the first written one below it, else about the nearest one around it, else about
    the first written one of its section: of a default, that is all that stands in a file."""
    if not path:
        return None
    around = [path_text(path[:length]) for length in range(len(path), 0, -1)]
    below, beside = (
        [key for key in values if key.startswith((f"{section}.", f"{section}["))]
        for section in (*around, "")[:2]
    )
    found = (values[key] for key in (around[0], *below, *around[1:], *beside) if key in values)
    return next((entry for entry in found if "file" in entry), None)


def origin_of(entry: dict[str, Any]) -> Origin:
    """The place of a noted value; its line is shown where the file still exists, marked at its first character."""
    name, line, column = entry["file"], entry["line"], entry["column"]
    path = Path(name)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    source = SourceText(name, text, kind="override" if entry["source"] == "override" else "file")
    return Origin(source, line, column, column + 1)
