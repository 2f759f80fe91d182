"""Files of results that are whole at any time: a benchmark may be cut off at its time limit."""

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> None:
    """Write a file under a temporary name and rename it: a reader sees the old one or the new."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(content, indent=1))
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """Return the content of a file, or nothing if there is none."""
    return json.loads(path.read_text()) if path.exists() else None
