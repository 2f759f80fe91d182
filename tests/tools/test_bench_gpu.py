"""The GPU benchmark at toy size, and what it makes of its sides."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "tools" / "bench"
sys.path.insert(0, str(BENCH))

from gpu import compare_sides, format_line  # noqa: E402
from gpu_rows import ROWS  # noqa: E402

LOSSES = [6.0, 5.5]


def side(ms: float = 10.0, *, state: str = "done", losses: Any = LOSSES) -> dict[str, Any]:
    return {
        "state": state,
        "ms": ms,
        "noise": 0.005,
        "first_losses": losses,
        "tokens_per_second": 1e3,
        "tflops": 1.0,
    }


@pytest.mark.parametrize(
    ("ours", "bare", "verdict"),
    [
        (side(10.0), side(10.04), "tie"),
        (side(10.0), side(12.0), "ok"),
        (side(12.0), side(10.0), "BELOW TARGET"),
        (
            side(10.0),
            side(10.0, losses=[6.0, 5.6]),
            "VOID: first losses differ by 0.0e+00, 1.8e-02",
        ),
        (side(), side(losses=[float("nan"), 5.5]), "VOID: first losses differ by nan, 0.0e+00"),
        (side(losses=[6.0, float("nan")]), side(), "VOID: first losses differ by 0.0e+00, nan"),
        (side(10.0), {"state": "absent"}, "alone"),
        (side(10.0), {"state": "timeout in compile"}, "FAILED: bare timeout in compile"),
        ({"state": "failed in build, see x"}, side(), "FAILED: titanrun failed in build, see x"),
    ],
)
def test_a_row_counts_only_if_both_sides_computed_the_same(
    ours: dict[str, Any], bare: dict[str, Any], verdict: str
) -> None:
    found = {"row": "1b", "titanrun": ours, **compare_sides(ours, bare)}
    assert found["verdict"] == verdict
    assert verdict in format_line(found)


@pytest.mark.parametrize(
    ("name", "flops"),
    # 6 a weight that is multiplied, and 12 L D S of attention
    [("1b_s4096", 9.03e9), ("8b_s4096", 51.5e9), ("8b_s8192_float8", 57.9e9)],
)
def test_flops_are_those_of_the_formula(name: str, flops: float) -> None:
    assert ROWS[name].flops_per_token == pytest.approx(flops, rel=2e-3)


def test_the_bare_loop_knows_nothing_of_titanrun() -> None:
    text = (BENCH / "gpu_bare.py").read_text()
    assert "import titanrun" not in text and "from titanrun" not in text


@pytest.mark.slow
def test_the_whole_program_runs_at_toy_size(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "gpu", "--toy", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["row"] for row in table] == ["1b_s4096", "8b_s4096", "8b_s4096_bf16_storage"]
    # one model is written by hand, the other is titanrun's
    assert all(row["loss_difference"] < 1e-4 for row in table)
