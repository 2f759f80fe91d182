import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from write_reliability import RESULTS, TARGET, rows, table  # noqa: E402


def test_the_page_is_that_of_the_results() -> None:
    assert TARGET.read_text(encoding="utf-8") == table(), "run tools/write_reliability.py"


def test_the_whole_matrix_is_there() -> None:
    assert {row for row in rows() if row.isdigit()} == {str(row) for row in range(1, 66)}


def test_no_cell_is_empty_and_each_row_names_a_test() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in RESULTS.parent.glob("test_*.py"))
    for row, cells in json.loads(RESULTS.read_text(encoding="utf-8")).items():
        assert all(cells.values()), row
        assert not cells["commit"].endswith("-dirty"), row
        assert f"def {cells['test']}(" in tests, row
