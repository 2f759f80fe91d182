"""The files of a run directory by name, and how JSON is read from and written to them. Light: listing thousands of runs imports it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESOLVED = "resolved.yaml"
# the finished model as transformers opens it
EXPORT_FOLDER = "hf"
SOURCES = "resolved.sources.json"
RUN_JSON = "run.json"
STATUS = "status.json"
METRICS = "metrics.jsonl"
TAGS = "tags.json"
LOCK = ".lock"
RUNS = "runs"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


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


def boot_id() -> str | None:
    """Which boot of the machine this is, since process ids mean nothing after the next; None where the system does not say."""
    return BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else None
