"""TorchForge's apps as recipes: the small ones learn, and differ from the large ones in size
only."""

import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.base import change_fields
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe


def trained(name: str, folder: Path) -> list[dict[str, float]]:
    """What a shipped recipe logs."""
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(shipped_recipes.get_shipped_recipe(name).path),
        f"dump_folder={folder}",
        "--quiet",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_metrics(folder / "metrics.jsonl")


@pytest.mark.slow
def test_grpo_learns_from_random_weights(tmp_path: Path) -> None:
    rewards = [
        line["rollout/reward_mean"] for line in trained("forge/grpo_debug", tmp_path / "run")[1:]
    ]
    assert fmean(rewards[-3:]) - fmean(rewards[:3]) >= 0.4


@pytest.mark.slow
def test_sft_learns_and_leaves_what_transformers_opens(tmp_path: Path) -> None:
    losses = [line["loss"] for line in trained("forge/sft_debug", tmp_path / "run")]
    assert fmean(losses[-3:]) < 0.6 * losses[0]
    assert (tmp_path / "run" / "hf" / "model.safetensors").is_file()


def test_the_small_recipe_learns_by_the_loss_of_the_large_one() -> None:
    small, large = (
        resolve_recipe(str(shipped_recipes.get_shipped_recipe(name).path), environment={}).run
        for name in ("forge/grpo_debug", "forge/grpo_qwen3_1_7b")
    )
    assert small.rl is not None and large.rl is not None
    # a vocabulary as large as that of the larger model has no entropy logged unasked
    assert (small.rl.algorithm.entropy_metric, large.rl.algorithm.entropy_metric) == (True, False)
    algorithm = change_fields(small.rl.algorithm, entropy_metric=False)
    assert algorithm == large.rl.algorithm and small.rl.schedule == large.rl.schedule
    assert (
        small.rl.rollout.prompts_per_step * small.rl.rollout.samples_per_prompt
        == large.training.local_batch_size
        == 16
    )
