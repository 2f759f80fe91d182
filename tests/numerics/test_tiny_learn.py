"""The learning recipe beats a Kneser-Ney trigram model on the same held-out text."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from make_tiny_corpus import ASSETS, measure_baseline  # noqa: E402


@pytest.mark.slow
def test_three_minutes_of_training_beat_the_trigram_model(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(ROOT / "recipes" / "llama3_tiny_learn.yaml"),
        f"dump_folder={tmp_path / 'run'}",
    ]
    subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    held_out = [
        line["validation/loss"]
        for line in read_metrics(tmp_path / "run" / "metrics.jsonl")
        if "validation/loss" in line
    ]
    assert held_out[-1] < measure_baseline(ASSETS) - 0.3
