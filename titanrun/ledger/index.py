"""Finds the runs below folders. What was read of each is kept in an index, which is a cache: whoever removes it loses nothing."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.config.problems import fail
from titanrun.ledger.entry import FIELDS, Entry, read_entry
from titanrun.recipe.run_files import METRICS, RUN_JSON, STATUS, TAGS, read_json

INDEX = ".titanrun-index.json"
# a hidden folder: runs in it are listed when it is named
ARCHIVE = ".archive"
# another number where an entry holds other things: an index of before is read anew
FORMAT = 1
# a folder of runs, of sweeps, of people; deeper ones are asked for by name
DEPTH = 4
FILES = (RUN_JSON, STATUS, METRICS, TAGS)

Stamp = list[int]


def entries_below(folder: Path) -> list[Entry]:
    """The runs in a folder, by name; the folder may be a run itself. Raises ProblemsFound where there is no such folder."""
    if not folder.is_dir():
        raise fail(
            "file",
            f"there is no folder '{folder}'",
            help="name a run directory, or a folder that holds some",
        )
    if (folder / RUN_JSON).is_file():
        return [read_entry(folder)]
    before = read_index(folder / INDEX)
    now = {
        run: (stamp, known(before.get(run), stamp, run) or read_entry(Path(run)))
        for run, stamp in run_folders(folder)
    }
    if {run: stamp for run, (stamp, _) in now.items()} != {
        run: line[0] for run, line in before.items()
    }:
        write_index(folder / INDEX, now)
    return [entry for _, entry in now.values()]


def run_folders(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """Every run directory below a folder with the stamp of its files, by name. Hidden folders and links are not entered."""
    waiting = [(str(folder), 0)]
    while waiting:
        path, depth = waiting.pop()
        stamp = stamp_of(path) if depth else None
        if stamp is not None:
            yield path, stamp
        elif depth < DEPTH:
            waiting += [(below, depth + 1) for below in reversed(folders_in(path))]


def archives_below(folder: Path) -> list[Path]:
    """The archives in a folder and in the folders of it that are no runs."""
    found, waiting = [], [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if (place / ARCHIVE).is_dir():
            found.append(place / ARCHIVE)
        if depth < DEPTH and not (place / RUN_JSON).is_file():
            waiting += [(Path(below), depth + 1) for below in reversed(folders_in(str(place)))]
    return found


def folders_in(path: str) -> list[str]:
    """The folders in a folder, by name; none in one that cannot be read."""
    with suppress(OSError), os.scandir(path) as found:
        return sorted(
            item.path
            for item in found
            if not item.name.startswith(".") and item.is_dir(follow_symlinks=False)
        )
    return []


def stamp_of(run: str) -> Stamp | None:
    """Time in ns and size of each file that an entry is read from, 0 for one that is missing; None where the folder is no run."""
    stamp: Stamp = []
    for name in FILES:
        try:
            about = os.stat(f"{run}/{name}")  # noqa: PTH116  (a Path a file would take half of the time)
        except OSError:
            if name == RUN_JSON:
                return None
            stamp += (0, 0)
        else:
            stamp += (about.st_mtime_ns, about.st_size)
    return stamp


def known(line: Any, stamp: Stamp, run: str) -> Entry | None:
    """The entry of an index's line; None where a file has changed since, or the line is none."""
    if (
        not isinstance(line, list)
        or len(line) != 2
        or line[0] != stamp
        or len(line[1]) != len(FIELDS) - 1
    ):
        return None
    values = dict(zip(FIELDS[1:], line[1], strict=True))
    return Entry(run, **{**values, "tags": tuple(values["tags"])})


def read_index(path: Path) -> Mapping[str, Any]:
    """The lines of an index by run, `[stamp, values]` each; none where it is missing, torn, or of another format."""
    data = read_json(path)
    runs = data.get("runs")
    if data.get("fields") != [FORMAT, *FIELDS] or not isinstance(runs, dict):
        return {}
    # as os.scandir names what is in a folder, which keeps the `.` in front
    return {
        f"{path.parent}/{run}": line
        for run, line in runs.items()
        if isinstance(line, list) and len(line) == 2
    }


def write_index(path: Path, entries: Mapping[str, tuple[Stamp, Entry]]) -> None:
    """Write the index, in one move; where that cannot be, it is read anew the next time."""
    runs = {
        os.path.relpath(run, path.parent): [stamp, [getattr(entry, name) for name in FIELDS[1:]]]
        for run, (stamp, entry) in entries.items()
    }
    text = json.dumps({"fields": [FORMAT, *FIELDS], "runs": runs})
    part = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with suppress(OSError):
        part.write_text(text, encoding="utf-8")
        part.replace(path)
