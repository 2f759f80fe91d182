"""The shipped RL recipes learn."""

import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.reference import shipped_recipes

pytestmark = pytest.mark.slow


def trained(name: str, folder: Path, *overrides: str, stage: str = "") -> list[dict[str, float]]:
    """What a shipped recipe logs when it is trained in a folder, or one of its stages."""
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        str(shipped_recipes.get_shipped_recipe(name).path),
        f"dump_folder={folder}",
        *overrides,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_metrics(folder / stage / "metrics.jsonl")


def test_a_policy_learns_from_random_weights(tmp_path: Path) -> None:
    lines = trained("char_share", tmp_path / "run")
    assert lines[-1]["validation/reward_mean"] - lines[0]["validation/reward_mean"] >= 0.8
    assert lines[-1]["rollout/reward_mean"] - lines[1]["rollout/reward_mean"] >= 0.8
    assert max(line.get("rl/logprob_diff_max", 0.0) for line in lines) < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_a_policy_learns_as_much_from_completions_that_a_fleet_runs_ahead_with(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the trainer and the fleet share the cores: more threads only compete
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings = (f"debug.seed={seed}", "optimizer.lr=1e-3", "lr_scheduler.warmup_steps=5")
    ahead = (
        *("rl.fleet.processes=1", "rl.schedule.target_offpolicy=2"),
        "rl.sync={transport: shared_memory, max_logprob_diff: auto}",
    )
    runs = [
        trained("char_share", tmp_path / "in_turn", *settings),
        trained("char_share", tmp_path / "ahead", *settings, *ahead),
    ]
    ages = [max(line.get("rl/age_max", 0.0) for line in lines) for lines in runs]
    assert ages[0] == 0 < ages[1] <= 2
    assert [lines[-1]["step"] for lines in runs] == [40, 40]
    in_turn, with_fleet = (lines[-1]["validation/reward_mean"] for lines in runs)
    assert min(in_turn, with_fleet) >= 0.95 and abs(in_turn - with_fleet) <= 0.03


def test_a_policy_learns_in_float8_within_the_limits_that_it_has_by_default(
    tmp_path: Path,
) -> None:
    """Forty steps with scales of rows, which RL has unless it is told otherwise."""
    lines = trained(
        "char_share",
        tmp_path / "run",
        "converters=[{name: float8_linear, emulate: true}]",
        "rl.sync.max_logprob_diff=auto",
    )
    resolved = (tmp_path / "run" / "resolved.yaml").read_text()
    assert "max_logprob_diff: 0.01" in resolved and 'recipe_name: "rowwise"' in resolved
    assert lines[-1]["step"] == 40 and lines[-1]["validation/reward_mean"] >= 0.9


def test_a_policy_learns_to_find_a_number_in_several_turns(tmp_path: Path) -> None:
    lines = trained("multiturn_guess", tmp_path / "run", stage="guesses")
    rewards = [line["rollout/reward_mean"] for line in lines if "rollout/reward_mean" in line]
    assert fmean(rewards[-10:]) - fmean(rewards[:10]) >= 0.2
    assert max(line["rollout/turns_mean"] for line in lines if "rollout/turns_mean" in line) > 1.5


def test_a_policy_learns_to_use_a_tool(tmp_path: Path) -> None:
    lines = trained("tool_lookup", tmp_path / "run", stage="looking_up")
    assert lines[-1]["validation/reward_mean"] - lines[0]["validation/reward_mean"] >= 0.3
    turns = [line["rollout/turns_mean"] for line in lines if "rollout/turns_mean" in line]
    assert turns[0] < 1.3 and turns[-1] > 1.5


def test_a_policy_learns_from_rewards_what_it_had_half_learned_from_answers(tmp_path: Path) -> None:
    gains = []
    for seed in range(3):
        lines = trained("reverse3", tmp_path / f"run-{seed}", f"debug.seed={seed}", stage="rewards")
        gains.append(lines[-1]["validation/reward_mean"] - lines[0]["validation/reward_mean"])
    assert min(gains) >= 0.1 and fmean(gains) >= 0.2, gains
