"""Undoing a start of a run that ended before its first step.

A start replaces the recipe of its run before anything is loaded. If the checkpoint or the data do
not fit the new recipe, the run is given back as it was: otherwise each later start would fail too,
and a finished run would look like a failed one.
"""

from pathlib import Path
from typing import Any

from titanrun.recipe.rundir.run_files import (
    PREVIOUS,
    REFUSED_STARTS,
    RESOLVED,
    RUN_JSON,
    SOURCES,
    STATUS,
    get_mapping,
    get_starts,
    get_text_value,
    read_json_or_empty,
    write_indented_json,
    write_text_atomically,
)


def keep_previous_start(folder: Path) -> None:
    """Keep the files of a run that the next start replaces.

    Those from before a start that has not trained yet are kept instead.
    """
    if (folder / PREVIOUS).exists():
        return
    texts = {
        name: (folder / name).read_text(encoding="utf-8")
        for name in (RESOLVED, SOURCES)
        if (folder / name).is_file()
    }
    content = {
        "texts": texts,
        "status": read_json_or_empty(folder / STATUS),
        "num_starts": len(get_starts(read_json_or_empty(folder / RUN_JSON))),
    }
    write_indented_json(folder / PREVIOUS, content)


def accept_start(folder: Path) -> None:
    """Forget what the run was before this start, which has trained a step or was stopped."""
    (folder / PREVIOUS).unlink(missing_ok=True)


def undo_start(folder: Path) -> None:
    """Give a run back as it was before a start, unless that was accepted.

    The start stays in run.json, among those that were refused.
    """
    previous = read_json_or_empty(folder / PREVIOUS)
    if not previous:
        return
    texts = get_mapping(previous, "texts")
    for name in (RESOLVED, SOURCES):
        text = get_text_value(texts, name)
        if text is not None:
            write_text_atomically(folder / name, text)
    count = previous.get("num_starts")
    if isinstance(count, int):
        move_refused_starts(folder, count)
    status = get_mapping(previous, "status")
    if status.get("state") == "finished":
        write_indented_json(folder / STATUS, status)
    accept_start(folder)


def move_refused_starts(folder: Path, count: int) -> None:
    """Move all starts in run.json but the first ones to those that were refused."""
    record: dict[str, Any] = read_json_or_empty(folder / RUN_JSON)
    starts, refused = get_starts(record), record.get(REFUSED_STARTS)
    if len(starts) <= count:
        return
    before = refused if isinstance(refused, list) else []
    lists = {"starts": starts[:count], REFUSED_STARTS: [*before, *starts[count:]]}
    write_indented_json(folder / RUN_JSON, {**record, **lists})


def refuse_starts(folder: Path) -> None:
    """Forget the starts of a run that never made a step; another recipe takes its folder."""
    record: dict[str, Any] = read_json_or_empty(folder / RUN_JSON)
    if not get_starts(record):
        return
    write_indented_json(
        folder / RUN_JSON, {key: record[key] for key in record if key not in ("name", "parent")}
    )
    move_refused_starts(folder, 0)
