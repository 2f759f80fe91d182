"""metrics.jsonl: one JSON object per logged step.

Torch-free: it is also read without torch.
"""

import errno
import io
import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)

# JSON has no such numbers, so they are written as text
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

# number of lines lost before this one
LOST_LINES = "metrics/lost_lines"
# no line is longer; maximum distance from the end to search for an incomplete line
LONGEST_LINE_BYTES = 1 << 20


class MetricsFile:
    """Writer that appends lines to `path`, each handed to the operating system at once.

    Floats have all their digits; NaN and infinities are the texts "nan", "inf" and "-inf". A line
    that cannot be written is lost, with one warning, and counted in the next line that can:
    training does not depend on it.
    """

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise problem_error(
                "file",
                f"'{path}' is a folder, but the metrics of the run are written there",
                hint="move it away",
            )
        if path.exists():
            _repair_last_line(path)
        # unbuffered: bytes that a full disk rejected must not reappear with the next line
        self._file = path.open("ab", buffering=0)
        self._end = self._file.seek(0, io.SEEK_END)
        self._lost = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the line of one step."""
        counted = {**values, LOST_LINES: self._lost} if self._lost else values
        line = {"step": step, **{name: encode_number(value) for name, value in counted.items()}}
        try:
            self._append(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._lost = 0
        except OSError as error:
            if not self._lost:
                log.warning("cannot write metrics.jsonl, training continues: %s", error)
            self._lost += 1

    def _append(self, line: bytes) -> None:
        """Write a whole line or, with OSError, nothing."""
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"only {written:,} of {len(line):,} bytes were written")
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the logged steps in order: one dict each, with `step` and the logged metrics.

    A resumed run logs some steps twice: the last line of a step counts. A last line that a crash
    left incomplete is ignored.

    Raises:
        ProblemsFound: A problem `file` if the file does not exist, or another line is not a JSON
            object with a step.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise problem_error("file", f"cannot read {path}: {error.strerror}") from error
    lines = text.split("\n")
    steps: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        values = _parse_line(line)
        if values is not None:
            steps[values["step"]] = values
        elif number < len(lines):
            raise problem_error("file", f"{path}:{number} is not a JSON object with a step")
    return [steps[step] for step in sorted(steps)]


def encode_number(value: float) -> float | str:
    """Return a number for JSON: NaN and infinities as texts."""
    return value if math.isfinite(value) else str(float(value))


def _parse_line(line: str) -> dict[str, Any] | None:
    try:
        values = parse_json(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        return None
    return {
        name: NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in values.items()
    }


def _repair_last_line(path: Path) -> None:
    """Remove an incomplete last line; add only a line break to a complete one."""
    with path.open("r+b") as file:
        start = max(0, path.stat().st_size - LONGEST_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        last_line = tail[tail.rfind(b"\n") + 1 :]
        if not last_line:
            return
        if _parse_line(last_line.decode(errors="replace")) is None:
            file.truncate(start + len(tail) - len(last_line))
        else:
            file.write(b"\n")
