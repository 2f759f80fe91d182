"""The shipped recipe of distillation: how near it comes to its teacher, and in what time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.test_sft_learns import cpu_seconds
from titanrun.components.metrics.spec.metrics_file import read_metrics

CPU_SECONDS = 150.0
"""A minute and a quarter on two cores."""


@pytest.mark.slow
def test_a_smaller_model_learns_the_predictions_of_a_larger_one(tmp_path: Path) -> None:
    def train(recipe: str, folder: str, *overrides: str) -> None:
        command = ["train", recipe, f"dump_folder={folder}", "--quiet", *overrides]
        subprocess.run([sys.executable, "-m", "titanrun", *command], check=True, cwd=tmp_path)

    train("llama3_sft_debug", "runs/teacher", "training.steps=800", "validation.enable=false")
    before = cpu_seconds()
    train("first_distillation", "runs/student")
    assert cpu_seconds() - before < CPU_SECONDS
    metrics = read_metrics(tmp_path / "runs" / "student" / "metrics.jsonl")
    for name in ("loss", "validation/loss"):
        first, *_, last = [line[name] for line in metrics if name in line]
        assert last < 0.4 * first, name
