"""The table of docs/training_engine.md says what results.json does, and every row is proven."""

import json
from pathlib import Path

import pytest

from tests.integrations.proofs import RESULTS, ROWS
from tools.write_engines import TARGET, page

ROOT = Path(__file__).parents[2]


def test_the_table_is_what_the_results_say() -> None:
    assert TARGET.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_proven_by_tests_that_are_there(name: str) -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    for test in ROWS[name].tests:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")
        assert test in results, f"{name}: run {test}"
