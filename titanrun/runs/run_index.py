"""Search for runs below folders, with a cached index that is safe to delete."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.recipe.rundir.run_files import METRICS, RUN_JSON, STATUS, TAGS, read_json_or_empty
from titanrun.runs.run_summary import SUMMARY_FIELDS, RunSummary, load_run_summary

INDEX = ".titanrun-index.json"
# a hidden folder: runs in it are listed only if it is named
ARCHIVE = ".archive"
# increment when the fields of a summary change, or what they mean: an older index is rebuilt
FORMAT = 2
# levels for runs, sweeps and users; deeper runs must be named
MAX_DEPTH = 4
STAMPED_FILES = (RUN_JSON, STATUS, METRICS, TAGS)

Stamp = list[int]


def load_run_summaries(folder: Path) -> list[RunSummary]:
    """Return the runs in a folder, by name; the folder may be a run itself.

    Raises ProblemsFound if the folder does not exist.
    """
    if not folder.is_dir():
        raise problem_error(
            "file",
            f"folder not found: '{folder}'",
            hint="pass a run directory, or a folder that contains some",
        )
    if (folder / RUN_JSON).is_file():
        return [load_run_summary(folder)]
    return [entry for _, entry in load_stamped_summaries(folder, {}).values()]


def load_stamped_summaries(
    folder: Path, known: Mapping[str, tuple[Stamp, RunSummary]]
) -> dict[str, tuple[Stamp, RunSummary]]:
    """Return the runs in a folder by their own folders, with the stamps of their files.

    Args:
        folder: The folder.
        known: What an earlier call returned, so that only runs that have changed are read.
    """
    before: Mapping[str, Any] = known or read_run_index(folder / INDEX)
    now = {
        run: (
            stamp,
            known[run][1]
            if run in known and known[run][0] == stamp
            else decode_index_line(before.get(run), stamp, run) or load_run_summary(Path(run)),
        )
        for run, stamp in iter_run_folders(folder)
    }
    if {run: stamp for run, (stamp, _) in now.items()} != {
        run: line[0] for run, line in before.items()
    }:
        write_run_index(folder / INDEX, now)
    return now


def iter_run_folders(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """Yield every run directory below a folder with the stamp of its files, by name.

    Hidden folders and links are not entered.
    """
    waiting = [(str(folder), 0)]
    while waiting:
        path, depth = waiting.pop()
        stamp = find_stamp(path) if depth else None
        if stamp is not None:
            yield path, stamp
        elif depth < MAX_DEPTH:
            waiting += [(below, depth + 1) for below in reversed(list_folders(path))]


def list_archives(folder: Path) -> list[Path]:
    """Return the archives in a folder and in its subfolders that are not runs."""
    found, waiting = [], [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if (place / ARCHIVE).is_dir():
            found.append(place / ARCHIVE)
        if depth < MAX_DEPTH and not (place / RUN_JSON).is_file():
            waiting += [(Path(below), depth + 1) for below in reversed(list_folders(str(place)))]
    return found


def list_folders(path: str) -> list[str]:
    """Return the folders in a folder, by name; empty if it is not readable."""
    with suppress(OSError), os.scandir(path) as found:
        return sorted(
            item.path
            for item in found
            if not item.name.startswith(".") and item.is_dir(follow_symlinks=False)
        )
    return []


def find_stamp(run: str) -> Stamp | None:
    """Return time in ns and size of each file of a run summary, 0 for a missing file.

    Return None if the folder is not a run.
    """
    stamp: Stamp = []
    for name in STAMPED_FILES:
        try:
            # a Path per file would take half of the time
            about = os.stat(f"{run}/{name}")  # noqa: PTH116
        except OSError:
            if name == RUN_JSON:
                return None
            stamp += (0, 0)
        else:
            stamp += (about.st_mtime_ns, about.st_size)
    return stamp


def decode_index_line(line: Any, stamp: Stamp, run: str) -> RunSummary | None:
    """Return the run summary of an index line.

    Return None if a file has changed since, or if the line is invalid.
    """
    if (
        not isinstance(line, list)
        or len(line) != 2
        or line[0] != stamp
        or len(line[1]) != len(SUMMARY_FIELDS) - 1
    ):
        return None
    values = dict(zip(SUMMARY_FIELDS[1:], line[1], strict=True))
    return RunSummary(run, **{**values, "tags": tuple(values["tags"])})


def read_run_index(path: Path) -> Mapping[str, Any]:
    """Return the lines of an index by run, `[stamp, values]` each.

    Return an empty mapping if it is missing, torn, or of another format.
    """
    data = read_json_or_empty(path)
    runs = data.get("runs")
    if data.get("fields") != [FORMAT, *SUMMARY_FIELDS] or not isinstance(runs, dict):
        return {}
    # same names as os.scandir, which keeps the leading `.`
    return {
        f"{path.parent}/{run}": line
        for run, line in runs.items()
        if isinstance(line, list) and len(line) == 2
    }


def write_run_index(path: Path, summaries: Mapping[str, tuple[Stamp, RunSummary]]) -> None:
    """Write the index atomically; after a failure it is rebuilt the next time."""
    runs = {
        os.path.relpath(run, path.parent): [
            stamp,
            [getattr(entry, name) for name in SUMMARY_FIELDS[1:]],
        ]
        for run, (stamp, entry) in summaries.items()
    }
    text = json.dumps({"fields": [FORMAT, *SUMMARY_FIELDS], "runs": runs})
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with suppress(OSError):
        part.write_text(text, encoding="utf-8")
        part.replace(path)
