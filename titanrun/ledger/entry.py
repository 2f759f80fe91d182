"""What the ledger knows of one run, read from the files in its folder and from nothing else."""

import json
import math
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from titanrun.components.metrics.jsonl import NON_FINITE
from titanrun.recipe.run_files import METRICS, RUN_JSON, STATUS, TAGS, read_json

VALIDATION = b'"validation/loss"'


@dataclass(frozen=True, slots=True)
class Entry:
    """A run as its files tell of it.

    Args:
        run: its folder.
        state: the state in status.json; whether a run that says it is running still does is asked of live_state.
        step, steps: the last step that is done, and how many there are to do where that is known.
        loss, grad_norm, tps: those of the last logged step; tps in tokens/s of one device.
        validation: the best validation loss.
        started: when it was started first, in ISO 8601.
        seconds: from the first start to the last sign of life; pauses between starts are in it.
        commit, dirty: the git commit of the working directory at the last start, and whether it had changes.
        pid, host, boot_id, heartbeat: of the process that wrote status.json; heartbeat in seconds since 1970.
    """

    run: str
    name: str | None = None
    state: str = "unknown"
    step: int = 0
    steps: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tps: float | None = None
    validation: float | None = None
    started: str | None = None
    seconds: float | None = None
    starts: int = 0
    commit: str | None = None
    dirty: bool | None = None
    tags: tuple[str, ...] = ()
    pid: int | None = None
    host: str | None = None
    boot_id: str | None = None
    heartbeat: float | None = None


FIELDS = tuple(field.name for field in fields(Entry))
# they say who wrote a file, which concerns nobody after
OF_PROCESS = ("pid", "boot_id", "heartbeat")


def read_entry(folder: Path) -> Entry:
    """The entry of a run directory; what a file does not tell is None."""
    record, status = read_json(folder / RUN_JSON), read_json(folder / STATUS)
    starts = [start for start in record.get("starts") or [] if isinstance(start, dict)]
    first, last = (starts[0], starts[-1]) if starts else ({}, {})
    git = (last.get("environment") or {}).get("git") or {}
    metrics = read_last_metrics(folder / METRICS)
    step = status.get("step")
    return Entry(
        str(folder),
        name=record.get("name"),
        state=str(status.get("state", "unknown")),
        step=step if isinstance(step, int) else metrics.get("step", 0),
        steps=whole((last.get("decided") or {}).get("steps")),
        loss=number(metrics.get("loss")),
        grad_norm=number(metrics.get("grad_norm")),
        tps=number(metrics.get("tps")),
        validation=metrics.get("best validation"),
        started=first.get("time"),
        seconds=seconds_between(first.get("time"), status.get("heartbeat")),
        starts=len(starts),
        commit=git.get("commit"),
        dirty=git.get("dirty"),
        tags=read_tags(folder),
        pid=whole(status.get("pid")),
        host=status.get("host"),
        boot_id=status.get("boot_id"),
        heartbeat=number(status.get("heartbeat")),
    )


def read_tags(folder: Path) -> tuple[str, ...]:
    """The tags of a run, in order."""
    found = read_json(folder / TAGS).get("tags", [])
    return tuple(str(tag) for tag in found) if isinstance(found, list) else ()


def read_last_metrics(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl, with the best validation loss of all lines as `best validation`; a torn line is none."""
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    found: dict[str, Any] = {}
    end = len(text)
    while end > 0 and not found:
        start = text.rfind(b"\n", 0, end) + 1
        found, end = as_object(text[start:end]), start - 1
    losses = [value for value in validation_losses(text).values() if math.isfinite(value)]
    return {**found, "best validation": min(losses)} if losses else found


def validation_losses(text: bytes) -> dict[int, float]:
    """The validation loss by step, of the lines that have one; the last line of a step counts."""
    found: dict[int, float] = {}
    at = text.find(VALIDATION)
    while at >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        line = as_object(text[text.rfind(b"\n", 0, at) + 1 : end])
        value = number(line.get("validation/loss"))
        if value is not None and isinstance(line.get("step"), int):
            found[line["step"]] = value
        at = text.find(VALIDATION, end)
    return found


def as_object(line: bytes) -> dict[str, Any]:
    """A line of JSON; empty where it is torn, or no object."""
    try:
        data = json.loads(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def number(value: object) -> float | None:
    """A number, also one that JSON has no sign for; None for anything else."""
    if isinstance(value, str):
        return NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def whole(value: object) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def seconds_between(first: object, last: object) -> float | None:
    """From a time in ISO 8601 to one in seconds since 1970; None where either is missing."""
    if not isinstance(first, str) or not isinstance(last, int | float):
        return None
    try:
        return max(0.0, last - datetime.fromisoformat(first).timestamp())
    except ValueError:
        return None


def as_data(entry: Entry, state: str) -> dict[str, object]:
    """An entry as a JSON object, with the state that it is in now; NaN and infinities are texts, as in metrics.jsonl."""
    values = {name: getattr(entry, name) for name in FIELDS if name not in OF_PROCESS}
    return {
        name: encoded(value)
        for name, value in {**values, "state": state, "tags": list(entry.tags)}.items()
    }


def encoded(value: object) -> object:
    """A value as JSON has it."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
