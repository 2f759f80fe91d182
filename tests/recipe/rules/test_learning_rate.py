"""A learning rate that can only be a mistake is told before the run."""

from pathlib import Path

import pytest

from titanrun.recipe.resolving.resolve import resolve_recipe

RULE = "learning-rate-is-small"
RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64}
"""


def find_hints(folder: Path, *overrides: str) -> list[str | None]:
    file = folder / "mine.yaml"
    file.write_text(RECIPE)
    warnings = resolve_recipe(str(file), overrides, environment={}).warnings
    return [problem.hint for problem in warnings if problem.rule == RULE]


@pytest.mark.parametrize("name", ["adamw", "adam", "muon", "sgd", "schedule_free_adamw"])
@pytest.mark.parametrize(
    ("written", "meant"), [("2e5", "2e-5"), ("3000", "3e-3"), ("1.5e4", "1.5e-4")]
)
def test_a_forgotten_sign_is_told(name: str, written: str, meant: str, tmp_path: Path) -> None:
    optimizer = f"optimizer.name={name}"
    hints = find_hints(tmp_path, optimizer, f"optimizer.lr={written}")
    assert hints == [f"set optimizer.lr: {meant}"]
    assert find_hints(tmp_path, optimizer, f"optimizer.lr={meant}") == []


@pytest.mark.parametrize("rate", ["1e30", "20"])
def test_other_high_rates_have_no_likely_meaning(rate: str, tmp_path: Path) -> None:
    hints = find_hints(tmp_path, f"optimizer.lr={rate}")
    assert hints == ["set optimizer.lr to a rate below 0.1, such as 1e-4"]


@pytest.mark.parametrize("rate", ["1", "5", "0.02", "1e-6"])
def test_rates_that_an_optimizer_may_have_are_fine(rate: str, tmp_path: Path) -> None:
    assert find_hints(tmp_path, f"optimizer.lr={rate}") == []


def test_losses_of_pairs_are_told_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}\n"
        "training: {dataset: tiny_pairs, seq_len: 64}\nloss: dpo\noptimizer: {lr: 1e6}\n"
        "checkpoint: {initial_load_path: runs/sft}\n"
    )
    warnings = resolve_recipe(str(file), environment={}).warnings
    assert [problem.hint for problem in warnings] == ["set optimizer.lr: 1e-6"]
