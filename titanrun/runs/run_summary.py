"""Summary of one run, read only from the files in its folder."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from titanrun.components.metrics.spec.metrics_file import NON_FINITE
from titanrun.config.json_text import parse_json
from titanrun.recipe.rundir.run_files import (
    METRICS,
    REFUSED_STARTS,
    RUN_JSON,
    STATUS,
    TAGS,
    get_mapping,
    get_starts,
    get_text_value,
    read_json_or_empty,
)

VALIDATION_LOSS_KEY = b'"validation/loss"'


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run from its files.

    Args:
        run: Its folder.
        state: The state in status.json. `get_run_state` checks whether a `running` run is alive.
        step, steps: The last completed step, and the number of all steps if that is known.
        loss, grad_norm, tps: Values of the last logged step; tps in tokens/s per device.
        validation: The best validation loss.
        started: Time of the first start, in ISO 8601.
        seconds: How long it was alive, over all starts, without the pauses between them.
        commit, dirty: The git commit of the working directory at the last start, and whether it had
            changes.
        pid, host, boot_id, heartbeat: Of the process that wrote status.json; heartbeat in seconds
            since
            1970.
        signal: Name of the signal that stopped a preempted run, None if it is not known.
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
    signal: str | None = None


SUMMARY_FIELDS = tuple(field.name for field in fields(RunSummary))
# these identify the writer of a file, which is irrelevant afterwards
PROCESS_FIELDS = ("pid", "boot_id", "heartbeat", "signal")


def load_run_summary(folder: Path, *, needs_metrics: bool = True) -> RunSummary:
    """Load the summary of a run directory. Missing values are None.

    Without `needs_metrics` the metrics, which may be long, are read only for a step that
    status.json does not tell.
    """
    record, status = read_json_or_empty(folder / RUN_JSON), read_json_or_empty(folder / STATUS)
    starts = get_starts(record)
    first, last = (starts[0], starts[-1]) if starts else ({}, {})
    git = get_mapping(get_mapping(last, "environment"), "git")
    step = status.get("step")
    metrics = (
        read_last_metrics(folder / METRICS) if needs_metrics or not isinstance(step, int) else {}
    )
    return RunSummary(
        str(folder),
        name=get_text_value(record, "name"),
        state=str(status.get("state", "unknown")),
        step=step if isinstance(step, int) else metrics.get("step", 0),
        steps=parse_whole_number(get_mapping(last, "decided").get("steps")),
        loss=parse_metric_number(metrics.get("loss")),
        grad_norm=parse_metric_number(metrics.get("grad_norm")),
        tps=parse_metric_number(metrics.get("tps")),
        validation=metrics.get("best validation"),
        started=get_text_value(first, "time"),
        seconds=compute_active_seconds(record, status.get("heartbeat")),
        starts=len(starts),
        commit=get_text_value(git, "commit"),
        dirty=git.get("dirty"),
        tags=read_tags(folder),
        pid=parse_whole_number(status.get("pid")),
        host=get_text_value(status, "host"),
        boot_id=get_text_value(status, "boot_id"),
        heartbeat=parse_metric_number(status.get("heartbeat")),
        signal=get_text_value(status, "signal"),
    )


def read_tags(folder: Path) -> tuple[str, ...]:
    """Return the tags of a run, in order."""
    found = read_json_or_empty(folder / TAGS).get("tags", [])
    return tuple(str(tag) for tag in found) if isinstance(found, list) else ()


def read_last_metrics(path: Path) -> dict[str, Any]:
    """Return the last complete line of metrics.jsonl and the best validation loss.

    The latter, of all lines, is stored as `best validation`. A torn line is ignored.
    """
    try:
        text = path.read_bytes()
    except OSError:
        return {}
    found: dict[str, Any] = {}
    end = len(text)
    while end > 0 and not found:
        start = text.rfind(b"\n", 0, end) + 1
        found, end = parse_json_object(text[start:end]), start - 1
    losses = [value for value in parse_validation_losses(text).values() if math.isfinite(value)]
    return {**found, "best validation": min(losses)} if losses else found


def parse_validation_losses(text: bytes) -> dict[int, float]:
    """Return the validation loss by step. The last line of a step counts."""
    found: dict[int, float] = {}
    at = text.find(VALIDATION_LOSS_KEY)
    while at >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        line = parse_json_object(text[text.rfind(b"\n", 0, at) + 1 : end])
        value = parse_metric_number(line.get("validation/loss"))
        if value is not None and isinstance(line.get("step"), int):
            found[line["step"]] = value
        at = text.find(VALIDATION_LOSS_KEY, end)
    return found


def parse_json_object(line: bytes) -> dict[str, Any]:
    """Parse a line of JSON. Return an empty object if it is torn or not an object."""
    try:
        data = parse_json(line)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def parse_metric_number(value: object) -> float | None:
    """Return a number, also a non-finite one that JSON cannot express; None for anything else."""
    if isinstance(value, str):
        return NON_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def parse_whole_number(value: object) -> int | None:
    """Return a whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def compute_active_seconds(record: Mapping[str, Any], heartbeat: object) -> float | None:
    """Return how long a run was alive: each start until its last heartbeat. None if not known.

    In runs of earlier versions, which do not record when a start ended, it ends with the next.

    Args:
        record: Content of run.json.
        heartbeat: The last one, from status.json, in seconds since 1970.
    """
    trained = [(parse_start_time(start), True, start) for start in get_starts(record)]
    # they did not train, but tell when the start before them ended
    others = get_starts({"starts": record.get(REFUSED_STARTS)})
    refused = [(parse_start_time(start), False, start) for start in others]
    known = sorted((item for item in trained + refused if item[0]), key=itemgetter(0))
    ends = [later.get("previous_heartbeat", began) for began, _, later in known[1:]]
    seconds = [
        max(0.0, end - began)
        for (began, has_trained, _), end in zip(known, [*ends, heartbeat], strict=False)
        if has_trained and isinstance(end, int | float)
    ]
    return sum(seconds) if seconds else None


def parse_start_time(start: Mapping[str, Any]) -> float:
    """Return the time of a start in seconds since 1970, 0 if it has none."""
    try:
        return datetime.fromisoformat(get_text_value(start, "time") or "").timestamp()
    except ValueError:
        return 0.0


def run_summary_to_dict(summary: RunSummary, state: str) -> dict[str, object]:
    """Convert a summary with its current state to a JSON object.

    NaN and infinities are texts, as in metrics.jsonl.
    """
    values = {name: getattr(summary, name) for name in SUMMARY_FIELDS if name not in PROCESS_FIELDS}
    return {
        name: encode_non_finite(value)
        for name, value in {**values, "state": state, "tags": list(summary.tags)}.items()
    }


def encode_non_finite(value: object) -> object:
    """Convert a value for JSON."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
