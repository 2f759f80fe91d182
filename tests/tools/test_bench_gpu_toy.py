"""The GPU benchmark at toy size: both sides of a row, with nothing but what a bare machine has."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "tools" / "bench"
# packages that a machine with a GPU may lack: a row must not import them
LACKING = (
    *("pyarrow", "pandas", "datasets", "transformers", "diffusers", "tokenizers", "rich"),
    *("huggingface_hub", "fsspec", "pygls", "lsprotocol", "torchtitan", "pytest", "packaging"),
)
MISSING = f"""
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec

def find(name, *rest):
    return None if name.partition(".")[0] in {LACKING} else find_spec(name, *rest)

PathFinder.find_spec = staticmethod(find)
"""
# of a side, and of a row with both
SIDE = {"torch", "device_name", "first_losses", "compile_seconds", "ms", "ms_p10", "ms_p90"} | {
    *("noise", "tokens_per_second", "tflops", "tflops_causal", "host_share", "host_missing"),
    *("profile", "seconds"),
}


def test_a_row_at_toy_size_has_both_sides_and_its_ceiling(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    command = [sys.executable, str(BENCH), "gpu", "--toy", "--rows", "1b_s4096"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        # threads of busy cores wait for each other
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row, ceilings = json.loads((tmp_path / "out" / "table.json").read_text())
    for name in ("titanrun", "bare"):
        assert row[name]["state"] == "done" and not SIDE - {*row[name]}
    # one model is written by hand, the other is titanrun's
    assert row["loss_difference"] < 1e-4 and row["ratio"] > 0
    assert ceilings["row"] == "1b_ceilings" and row["ceiling_share"] > 0
    assert "of bare" in done.stdout and "of ceiling" in done.stdout
    assert "DO NOT COUNT" not in done.stdout
