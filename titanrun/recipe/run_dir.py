"""The run directory: who may write into it, and the files that say what ran."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from titanrun.config.base import dump, nested
from titanrun.config.diff import Change, compare
from titanrun.config.fields import setting_of
from titanrun.config.problems import DataPath, Problem, ProblemsFound, Related, fail
from titanrun.config.render import shorten
from titanrun.config.tree import find, path_text
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolve import Resolved, read_resolved
from titanrun.recipe.sources import source_report, sources

RESOLVED = "resolved.yaml"
SOURCES = "resolved.sources.json"
RUN_JSON = "run.json"
STATUS = "status.json"
RUNS = "runs"
# what training.steps decides when nobody writes it
FOLLOW_STEPS = {("lr_scheduler", "warmup_steps"), ("lr_scheduler", "total_steps")}


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A folder that a run may write into. `done` holds the last step of a run that is already finished."""

    path: Path
    state: Literal["new", "unfinished", "finished"]
    changes: tuple[Change, ...] = ()
    done: int | None = None


def find_run_directory(resolved: Resolved, now: datetime) -> RunDirectory:
    """The directory of this run, nothing written yet. Raises ProblemsFound where another run lives there."""
    if resolved.recipe.dump_folder is None:
        return RunDirectory(new_folder(Path(RUNS), str(resolved.run.name), now), "new")
    path = Path(resolved.recipe.dump_folder)
    place = find(resolved.tree, ("dump_folder",))
    origin = place.origin if place else None
    if path.exists() and not path.is_dir():
        raise fail("file", f"'{path}' is a file, not a folder", path=("dump_folder",), origin=origin)
    if not path.exists() or not any(path.iterdir()):
        return RunDirectory(path, "new")
    if not (path / RESOLVED).is_file():
        help = "name an empty or a new folder"
        raise fail("file", f"'{path}' is not empty and holds no run", path=("dump_folder",), origin=origin, help=help)
    return existing_run(path, resolved)


def new_folder(parent: Path, name: str, now: datetime) -> Path:
    """`<parent>/<name>-<time>`, with a counter where that exists already."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"
    base = f"{safe}-{now:%Y%m%d-%H%M%S}"
    candidates = [parent / base, *(parent / f"{base}-{count}" for count in range(2, 1000))]
    return next(candidate for candidate in candidates if not candidate.exists())


def existing_run(path: Path, resolved: Resolved) -> RunDirectory:
    """A folder with a run in it: the same recipe goes on, another one is a problem."""
    before = read_resolved(path / RESOLVED)
    changes = compare(dump(before), dump(resolved.run))
    refused = [change for change in changes if not resume_allows(change, resolved)]
    if refused:
        raise ProblemsFound([another_recipe(path, refused, resolved)])
    status = read_json(path / STATUS)
    done = status.get("step") if status.get("state") == "finished" else None
    more = resolved.run.training.steps > before.training.steps
    if isinstance(done, int) and not more:
        return RunDirectory(path, "finished", done=done)
    return RunDirectory(path, "unfinished", tuple(changes))


def resume_allows(change: Change, resolved: Resolved) -> bool:
    """Whether a run may go on after this change: its field says so, or it follows from training.steps."""
    if change.path in FOLLOW_STEPS:
        return is_decided(change.path, resolved)
    return change.path[0] == "metrics" or change.path in resumable_paths(resolved.run)


def is_decided(path: DataPath, resolved: Resolved) -> bool:
    """Whether nobody wrote the value at `path`."""
    node = find(resolved.tree, path)
    return node is None or node.value == "auto"


def resumable_paths(run: Recipe) -> set[DataPath]:
    """Paths of the fields that declare `resume`."""
    found = set()
    for path, config in nested(run):
        for name, field in type(config).model_fields.items():
            setting = setting_of(field)
            if setting is not None and setting.resume:
                found.add((*path, name))
    return found


def another_recipe(path: Path, changes: list[Change], resolved: Resolved) -> Problem:
    """One problem that lists every change a resume does not allow."""
    place = find(resolved.tree, ("dump_folder",))
    listed = tuple(Related(origin_of(change, resolved), change_text(change), change.path) for change in changes)
    return Problem(
        "conflict",
        f"'{path}' holds a run of another recipe: {len(changes)} value{'s differ' if len(changes) > 1 else ' differs'}",
        ("dump_folder",),
        place.origin if place else None,
        rule="another-run",
        help="name another folder, or undo the changes",
        related=listed,
    )


def origin_of(change: Change, resolved: Resolved) -> Any:
    """Where the new value of a change was written."""
    node = find(resolved.tree, change.path)
    return node.origin if node is not None else None


def change_text(change: Change) -> str:
    """`optimizer.lr 0.0003 -> 0.001`."""
    return f"{path_text(change.path)} {shorten(change.left)} -> {shorten(change.right)}"


def write_run(directory: RunDirectory, resolved: Resolved, argv: list[str], now: datetime) -> None:
    """Create the directory and write resolved.yaml, resolved.sources.json and run.json."""
    directory.path.mkdir(parents=True, exist_ok=True)
    write_atomically(directory.path / RESOLVED, resolved.text)
    found = sources(resolved)
    write_json(directory.path / SOURCES, source_report(found, resolved.tree, argv))
    record = read_json(directory.path / RUN_JSON) or {"format": 1, "name": resolved.run.name, "starts": []}
    start = {
        "time": now.isoformat(timespec="seconds"),
        "argv": argv,
        "cwd": str(Path.cwd()),
        "python": sys.version.split()[0],
        "inputs": input_files(resolved.run),
        "changes": [change_text(change) for change in directory.changes],
    }
    record["starts"].append(start)
    write_json(directory.path / RUN_JSON, record)


def record_decisions(run_directory: Path, decisions: Mapping[str, object]) -> None:
    """Add what only the machine could decide (device, ranks) to the last start in run.json."""
    record = read_json(run_directory / RUN_JSON) or {"format": 1, "starts": [{}]}
    record["starts"][-1]["decided"] = dict(decisions)
    write_json(run_directory / RUN_JSON, record)


def input_files(run: Recipe) -> list[dict[str, str]]:
    """Every input that the recipe names, with its absolute path, and the hash where it is a file."""
    written = {run.model.hf_assets_path, run.checkpoint.initial_load_path}
    written |= {getattr(config, "path", None) for _, config in nested(run)}
    found = []
    for name in sorted(path for path in written if path is not None):
        entry = {"path": name, "absolute": str(Path(name).resolve())}
        if Path(name).is_file():
            entry["sha256"] = file_hash(Path(name))
        found.append(entry)
    return found


def file_hash(path: Path) -> str:
    """sha256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where the file is missing or torn."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """A JSON object, indented, in one atomic replacement."""
    write_atomically(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, flush to the disk, then rename over it."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
