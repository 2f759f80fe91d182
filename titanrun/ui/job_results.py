"""What commands have printed: text for people, and answers of commands that only read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.json_text import parse_json
from titanrun.launch.detached_command import STDOUT
from titanrun.ui.run_details import to_plain_text

MAX_OUTPUT_BYTES = 64 * 1024
MAX_RESULT_BYTES = 64 * 1024**2
NUM_BINS = 40


def read_output(path: Path) -> str:
    """Return the end of what a command has printed, empty if it has not begun."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_OUTPUT_BYTES))
            return to_plain_text(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def read_result(folder: Path, command: str) -> Any:
    """Return the answer of a command that only reads."""
    with (folder / STDOUT).open("rb") as file:
        data = file.read(MAX_RESULT_BYTES)
    return READERS[command](data)


def read_lines(data: bytes) -> list[Any]:
    """Return the JSON values of the lines."""
    return [parse_json(line) for line in data.splitlines() if line.strip()]


def summarize_stats(data: bytes) -> list[dict[str, Any]]:
    """Return the statistics of datasets, with histograms in place of all lengths."""
    found = []
    for entry in read_lines(data):
        lengths = entry.pop("lengths", [])
        counted = entry.pop("counted_of_rows", [])
        found.append(
            {
                **entry,
                "lengths": build_histogram(lengths),
                "counted_of_rows": build_histogram(counted),
            }
        )
    return found


def build_histogram(values: Sequence[int]) -> Mapping[str, Any]:
    """Return counts of whole numbers in at most `NUM_BINS` ranges of equal width."""
    if not values:
        return {"start": 0, "width": 1, "counts": []}
    low, high = min(values), max(values)
    width = max(1, -(-(high - low + 1) // NUM_BINS))
    counts = [0] * ((high - low) // width + 1)
    for value in values:
        counts[(value - low) // width] += 1
    return {"start": low, "width": width, "counts": counts}


READERS: dict[str, Callable[[bytes], Any]] = {
    "plan": lambda data: read_lines(data)[0],
    "data-show": read_lines,
    "data-stats": summarize_stats,
    "submission": lambda data: to_plain_text(data.decode("utf-8", "replace")),
    "sweep-table": read_lines,
}
