"""Writes the table of docs/reliability.md from tests/faults/results.json, which the tests of the fault matrix write when
TITANRUN_WRITE_FAULTS is set."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "faults" / "results.json"
TARGET = ROOT / "docs" / "reliability.md"
HEAD = """# What was done to runs, and what became of them

Each row is a test in `tests/faults/`, named after the row, that passed at that commit (`-dirty`: with changes that were not committed yet)
on a CPU with a tiny model. Rows that are missing have no recorded result: nothing is claimed of them. This file is written by
`tools/write_reliability.py`.

| row | done to the run | outcome | lost | commit, date |
|---|---|---|---|---|
"""


def table() -> str:
    """The whole page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = sorted(results.items(), key=lambda item: int(item[0]))
    lines = [
        f"| {row} | {cell['injected']} | {cell['outcome']} | {cell['lost']} | {cell['commit']}, {cell['date']} |" for row, cell in rows
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(table(), encoding="utf-8")
