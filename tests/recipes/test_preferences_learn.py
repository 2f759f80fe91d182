"""The shipped recipes for preferences: which replies they come to prefer, and in what time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.test_sft_learns import cpu_seconds
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.reference import shipped_recipes

CPU_SECONDS = 120.0
"""A minute on two cores."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "loss", "overrides"),
    [
        ("llama3_orpo_debug", "orpo", ()),
        ("llama3_kto_debug", "kto", ()),
        ("llama3_reward_debug", "reward", ()),
        ("llama3_orpo_debug", "dpo", ("loss=dpo",)),
        ("llama3_orpo_debug", "ipo", ("loss=ipo",)),
        ("llama3_orpo_debug", "cpo", ("loss=cpo",)),
        ("llama3_orpo_debug", "simpo", ("loss=simpo",)),
    ],
    ids=["orpo", "kto", "reward", "dpo", "ipo", "cpo", "simpo"],
)
def test_a_small_model_learns_to_prefer(
    recipe: str, loss: str, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    file = shipped_recipes.get_shipped_recipe(recipe).path
    before = cpu_seconds()
    command = ["train", str(file), f"dump_folder={tmp_path}/run", "--quiet", *overrides]
    subprocess.run([sys.executable, "-m", "titanrun", *command], check=True)
    assert cpu_seconds() - before < CPU_SECONDS
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")
    first, last = metrics[0], metrics[-1]
    assert last[f"{loss}/accuracy"] > 0.95
    assert last[f"{loss}/chosen_reward"] > last[f"{loss}/rejected_reward"]
    assert last["validation/loss"] < first["validation/loss"]
