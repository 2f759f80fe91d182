"""metrics.jsonl: one JSON object a logged step, written as it happens and read back. No torch here: it is read without it."""

import errno
import io
import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from titanrun.config.problems import fail

log = logging.getLogger(__name__)

# JSON has no such numbers, so they are written as text
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

# how many lines before this one the disk did not take
LOST = "metrics/lost_lines"
# no line is longer; how far back from the end a torn one is looked for
LONGEST_LINE_BYTES = 1 << 20


class MetricsFile:
    """Appends lines to `path`, each on disk in the operating system's sense as soon as it is written.

    Floats stand with all their digits; NaN and infinities as the texts "nan", "inf" and "-inf". A line that the disk does not take is
    lost, with one warning, and counted in the next one that it takes: training does not depend on it.
    """

    def __init__(self, path: Path) -> None:
        if path.exists():
            _mend_last_line(path)
        # unbuffered: what a full disk did not take must not come back with the next line
        self._file = path.open("ab", buffering=0)
        self._end = self._file.seek(0, io.SEEK_END)
        self._lost = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append the line of one step."""
        counted = {**values, LOST: self._lost} if self._lost else values
        line = {"step": step, **{name: encoded(value) for name, value in counted.items()}}
        try:
            self._append(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._lost = 0
        except OSError as error:
            if not self._lost:
                log.warning("metrics.jsonl takes no more lines, training goes on: %s", error)
            self._lost += 1

    def _append(self, line: bytes) -> None:
        """Adds a whole line or, with OSError, nothing."""
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes were written")
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The logged steps in order: one dict each, with `step` and what was logged.

    A run that was stopped and went on logs some steps twice: the last line of a step counts. A last line that a crash tore is
    left out.

    Raises a problem `file` where there is no such file, or another line is no JSON object with a step.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise fail("file", f"cannot read {path}: {error.strerror}") from error
    lines = text.split("\n")
    steps: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        values = _parsed(line)
        if values is not None:
            steps[values["step"]] = values
        elif number < len(lines):
            raise fail("file", f"{path}:{number} is no JSON object with a step")
    return [steps[step] for step in sorted(steps)]


def encoded(value: float) -> float | str:
    """A number as JSON has it: NaN and infinities as texts."""
    return value if math.isfinite(value) else str(float(value))


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        return None
    return {
        name: NON_FINITE.get(value, value) if isinstance(value, str) else value
        for name, value in values.items()
    }


def _mend_last_line(path: Path) -> None:
    """Cut off a last line that a crash tore, so that the next one stands alone; a whole one only gets its line break."""
    with path.open("r+b") as file:
        start = max(0, path.stat().st_size - LONGEST_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        last_line = tail[tail.rfind(b"\n") + 1 :]
        if not last_line:
            return
        if _parsed(last_line.decode(errors="replace")) is None:
            file.truncate(start + len(tail) - len(last_line))
        else:
            file.write(b"\n")
