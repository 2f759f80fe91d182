"""Runs that reward completions, before the run starts."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
kind: rl
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: string_task, seq_len: 128, steps: 20}
rl: {rollout: {renderer: chat}, rewards: [exact_match, {name: model, path: runs/rm}]}
"""
REWARD_RUN = """version: 1
kind: sft
model: {name: llama3, flavor: debugmodel, head: HEAD}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    return "mine.yaml"


def save_run(head: str) -> None:
    saved = Path("runs/rm/checkpoint/step-5")
    saved.mkdir(parents=True)
    (saved / "manifest.json").write_text("{}")
    (saved / "resolved.yaml").write_text(REWARD_RUN.replace("HEAD", head))


def find_messages(recipe: str) -> list[tuple[str, str, str | None]]:
    try:
        resolve_recipe(recipe, environment={}, should_check_inputs=True)
    except ProblemsFound as error:
        return [(one.rule or "", one.message, one.hint) for one in error.problems]
    return []


def test_a_run_with_a_scalar_head_is_a_reward_model(recipe: str) -> None:
    save_run("scalar")
    assert find_messages(recipe) == []


def test_another_run_is_none(recipe: str) -> None:
    save_run("lm")
    hint = "use the run directory of a recipe with loss: reward"
    message = "the model in 'runs/rm' has no scalar head"
    assert find_messages(recipe) == [("reward-model-scores", message, hint)]


def test_a_run_that_is_missing_or_has_no_checkpoint_is_told(recipe: str) -> None:
    Path("runs/rn").mkdir(parents=True)
    [(_, message, hint)] = find_messages(recipe)
    assert (message, hint) == ("folder not found: 'runs/rm'", "did you mean 'runs/rn'?")
    Path("runs/rm").mkdir()
    [(_, message, hint)] = find_messages(recipe)
    told = "'runs/rm' is neither a checkpoint nor a run directory with one: it is an empty folder"
    assert message == told
    assert hint == "use the run directory of a recipe with loss: reward"
