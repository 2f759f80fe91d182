"""Names of the files in a run directory, and JSON reading and writing.

Imports little: listing thousands of runs imports this module.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json

RESOLVED = "resolved.yaml"
# the final model in the format of transformers
EXPORT_FOLDER = "hf"
SOURCES = "resolved.sources.json"
# tokenized data, unless it is in a folder that runs share
DATA_FOLDER = "data"
RUN_JSON = "run.json"
# in run.json: starts that were undone before their first step
REFUSED_STARTS = "refused_starts"
STATUS = "status.json"
METRICS = "metrics.jsonl"
# the tokens of each expert at each logged step
EXPERT_LOADS = "moe.jsonl"
TAGS = "tags.json"
LOCK = ".lock"
# held while one of several launchers opens the run directory
OPENING = ".opening"
# what the run was before a start that has trained no step yet
PREVIOUS = ".previous_start.json"
RUNS = "runs"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return a JSON object, or an empty one if the file is missing or malformed."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def get_mapping(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the JSON object under a key, empty if something else wrote another value."""
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def get_text_value(data: Mapping[str, Any], key: str) -> str | None:
    """Return the text under a key, None if there is none."""
    found = data.get(key)
    return found if isinstance(found, str) else None


def get_starts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the starts in the content of run.json, none if it was written by something else."""
    starts = record.get("starts")
    return (
        [start for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
    )


def write_indented_json(path: Path, data: Mapping[str, object]) -> None:
    """Write a JSON object, indented, in one atomic replacement."""
    write_text_atomically(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def write_text_atomically(path: Path, text: str) -> None:
    """Write to a temporary sibling, flush to disk, then rename it over the target."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_boot_id() -> str | None:
    """Return the id of the machine's current boot, or None if the system has none.

    Process ids mean nothing after the next boot.
    """
    return BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else None


def build_starting_status(before: Mapping[str, Any]) -> dict[str, Any]:
    """Build the status.json that is valid until a worker writes it.

    This process becomes that worker, or the launcher of several.
    """
    step = before.get("step")
    process = {"pid": os.getpid(), "host": socket.gethostname(), "boot_id": read_boot_id()}
    return {
        "state": "starting",
        "step": step if isinstance(step, int) else 0,
        **process,
        "heartbeat": time.time(),
        "exit_code": None,
    }
