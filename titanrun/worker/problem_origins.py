"""Recipe locations of problems that are found while a run is built."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from titanrun.config.problems import DataPath, Origin, Problem, ProblemsFound, SourceText
from titanrun.config.read_source import FORMATS, read_source
from titanrun.config.tree import format_path, iter_nodes
from titanrun.recipe.rundir.run_files import SOURCES, read_json_or_empty


def attach_origins(error: BaseException, run_dir: Path) -> BaseException:
    """Return `error` with the locations of its problems.

    The locations come from resolved.sources.json in the run directory.
    """
    if not isinstance(error, ProblemsFound):
        return error
    report = read_json_or_empty(run_dir / SOURCES)
    return ProblemsFound([attach_resolved_origin(problem, report) for problem in error.problems])


def attach_resolved_origin(problem: Problem, report: dict[str, Any]) -> Problem:
    """Return the problem with its location, or unchanged if it has one or it is unknown."""
    entry = find_source_entry(problem.path, report.get("values", {}))
    if problem.origin is not None or entry is None:
        return problem
    return replace(problem, origin=build_source_origin(entry))


def find_source_entry(path: DataPath, values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the recorded source of the value at `path`.

    If the value itself has no source, return that of the first written value below it, else that of
    the nearest one around it, else that of the first written value of its section: a default value
    has no other place in a file.
    """
    if not path:
        return None
    around = [format_path(path[:length]) for length in range(len(path), 0, -1)]
    below, siblings = (
        [key for key in values if key.startswith((f"{section}.", f"{section}["))]
        for section in (*around, "")[:2]
    )
    found = (values[key] for key in (around[0], *below, *around[1:], *siblings) if key in values)
    return next((entry for entry in found if "file" in entry), None)


def build_source_origin(entry: dict[str, Any]) -> Origin:
    """Return the location of a recorded value.

    The line is shown if the file still exists.
    """
    name, line, column = entry["file"], entry["line"], entry["column"]
    path = Path(name)
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    source = SourceText(name, text, kind="override" if entry["source"] == "override" else "file")
    return Origin(source, line, column, find_end_column(path, line, column))


def find_end_column(file: Path, line: int, column: int) -> int:
    """Return the end of the value at a place in a recipe, of one character if none is there now."""
    try:
        tree = read_source(str(file)) if file.suffix in FORMATS and file.is_file() else None
    except ProblemsFound:
        tree = None
    return next(
        (
            node.origin.end_column
            for _, node in (() if tree is None else iter_nodes(tree))
            if (node.origin.line, node.origin.column) == (line, column)
            and node.origin.end_column > column
        ),
        column + 1,
    )
