"""The shipped recipe for conversations: what it reaches, and in what time."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.recipe.reference import shipped_recipes

CPU_SECONDS = 360.0
"""Three minutes on two cores."""


@pytest.mark.slow
def test_the_recipe_for_conversations_answers_what_it_never_saw(tmp_path: Path) -> None:
    recipe = shipped_recipes.get_shipped_recipe("llama3_sft_debug").path
    before = cpu_seconds()
    train = ["train", str(recipe), f"dump_folder={tmp_path}/run", "--quiet"]
    subprocess.run([sys.executable, "-m", "titanrun", *train], check=True)
    trained = cpu_seconds() - before
    command = [sys.executable, "-m", "titanrun", "eval", f"{tmp_path}/run", "--json"]
    found = {
        line["task"]: line
        for line in map(
            json.loads, subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
        )
    }
    assert found["exact_match"]["replies"] == 375
    assert found["exact_match"]["exact_match"] >= 0.95
    assert found["loss"]["loss"] == pytest.approx(
        last_validation(tmp_path / "run" / "metrics.jsonl"), abs=1e-6
    )
    assert trained < CPU_SECONDS


def cpu_seconds() -> float:
    """Of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def last_validation(metrics: Path) -> float:
    losses = [
        line["validation/loss"]
        for line in map(json.loads, metrics.read_text().splitlines())
        if "validation/loss" in line
    ]
    return float(losses[-1])
