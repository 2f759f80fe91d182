"""Write the table of docs/fault_injection.md from tests/faults/results.json.

The tests of the fault matrix write that file when TITANRUN_WRITE_FAULTS is set.
"""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "faults" / "results.json"
TARGET = ROOT / "docs" / "fault_injection.md"
HEAD = """# Fault-injection results

Each row is a test in `tests/faults/`, named after the row, that passed at that commit on a CPU \
with a tiny model. A row that waits for
a missing feature names it and claims nothing. `make test-all` runs all rows; rows 1 to 15, 18, \
20, 24 to 26, 33, 55
to 58 and 61 to 65 are part of `make test` or `make test-medium`. This page is written by \
`tools/write_reliability.py`.

| row | fault | outcome | lost | commit, date |
|---|---|---|---|---|
"""
WAITING = {}


def rows() -> dict[str, tuple[str, ...]]:
    """Return the cells of each row, in order."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    tried = {
        row: (cell["injected"], cell["outcome"], cell["lost"], f"{cell['commit']}, {cell['date']}")
        for row, cell in results.items()
    }
    waiting = {row: (*cells, "not known", "none") for row, cells in WAITING.items()}
    return dict(
        sorted((waiting | tried).items(), key=lambda item: (int(item[0].rstrip("b")), item[0]))
    )


def table() -> str:
    """Build the whole page."""
    return HEAD + "".join(f"| {' | '.join((row, *cells))} |\n" for row, cells in rows().items())


if __name__ == "__main__":
    TARGET.write_text(table(), encoding="utf-8")
