"""Write the table of docs/training_engine.md from tests/integrations/results.json.

The tests update that file when TITANRUN_WRITE_FAMILIES is set.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.integrations.proofs import RESULTS, ROWS  # noqa: E402

TARGET = ROOT / "docs" / "training_engine.md"
TITLE = "## Tested features by system\n"
HEAD = """
A row is listed if all of its tests passed on a CPU; none was run on a GPU. A and C are \
torchtitan's configs and extension points,
B its RL, D TorchForge, E verl. `tools/write_engines.py` writes this table;
`TITANRUN_WRITE_FAMILIES=1 pytest -m "slow or not slow" ...` updates the results.
`pytest -m "slow or not slow" -k "[B9]"` runs the tests of row B9, and so on;
`make test-vllm` those of vLLM.

| row | feature | tests on a CPU | commit, date | one GPU |
|---|---|---|---|---|
"""


def page() -> str:
    """Build the whole page: what stands above the table is written by hand."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    above = TARGET.read_text(encoding="utf-8").partition(TITLE)[0]
    lines = [
        f"| {name} | {row.what} | {'<br>'.join(map(shown, row.tests))} | "
        f"{stamp(row.tests, results)} | |"
        for name, row in ROWS.items()
    ]
    return above + TITLE + HEAD + "\n".join(lines) + "\n"


def shown(test: str) -> str:
    """Return a test without what all of them begin with."""
    return f"`{test.removeprefix('tests/')}`"


def stamp(tests: tuple[str, ...], results: dict[str, dict[str, str]]) -> str:
    """Return when the last of the tests was run, and on which commit.

    `unproven` where one never passed.
    """
    if any(test not in results for test in tests):
        return "unproven"
    last = max((results[test] for test in tests), key=lambda found: found["date"])
    return f"{last['commit']}, {last['date']}"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
