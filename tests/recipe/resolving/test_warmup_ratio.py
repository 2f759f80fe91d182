"""A warmup that is a share of the run, as transformers counts it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import TrainingArguments

from titanrun.components.lr_schedulers.config import WarmupScheduleConfig
from titanrun.config.base import dump_config
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_yaml
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.resolving.resolve_auto import fill_steps

SCHEDULES = ["warmup_stable_decay", "cosine", "polynomial", "inverse_sqrt", "constant"]


def resolve(folder: Path, schedule: str, *overrides: str, length: str = "steps: 100") -> Recipe:
    file = folder / "recipe.yaml"
    file.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
        f"training: {{dataset: tiny, seq_len: 64, {length}}}\nlr_scheduler: {schedule}\n",
        encoding="utf-8",
    )
    return resolve_recipe(str(file), overrides, environment={}).run


def get_warmup(run: Recipe) -> int | None:
    assert isinstance(run.lr_scheduler, WarmupScheduleConfig)
    assert run.lr_scheduler.warmup_steps != "auto"
    return run.lr_scheduler.warmup_steps


def count_in_transformers(share: float, steps: int) -> int:
    arguments = SimpleNamespace(warmup_steps=share)
    return int(TrainingArguments.get_warmup_steps(arguments, steps))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_share_of_the_run_is_transformers_number_of_steps(name: str, tmp_path: Path) -> None:
    for share in (0.0, 0.03, 0.07, 0.5, 0.999):
        for steps in (1, 99, 100, 12345):
            run = resolve(
                tmp_path, f"{{name: {name}, warmup_ratio: {share}}}", length=f"steps: {steps}"
            )
            assert get_warmup(run) == count_in_transformers(share, steps)


def test_with_epochs_the_data_decides(tmp_path: Path) -> None:
    run = resolve(tmp_path, "{name: cosine, warmup_ratio: 0.03}", length="epochs: 2")
    assert get_warmup(run) is None
    assert get_warmup(fill_steps(run, 250)) == count_in_transformers(0.03, 250) == 8


def test_the_resolved_recipe_resolves_to_itself(tmp_path: Path) -> None:
    run = resolve(tmp_path, "{name: cosine, warmup_ratio: 0.03}", length="tokens: 1M")
    again = tmp_path / "resolved.yaml"
    again.write_text(to_yaml(dump_config(run)), encoding="utf-8")
    assert resolve_recipe(str(again), (), environment={}).run == run


def test_the_nearest_warmup_counts(tmp_path: Path) -> None:
    steps, share = "{warmup_steps: 7}", "{warmup_ratio: 0.5}"
    assert get_warmup(resolve(tmp_path, steps, "lr_scheduler.warmup_ratio=0.2")) == 20
    assert get_warmup(resolve(tmp_path, share, "lr_scheduler.warmup_steps=7")) == 7
    assert get_warmup(resolve(tmp_path, share, "training.steps=10")) == 5


def test_two_in_one_file_are_a_conflict(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound) as found:
        resolve(tmp_path, "{warmup_steps: 7, warmup_ratio: 0.5}")
    (problem,) = found.value.problems
    assert problem.rule == "one-warmup"
    assert problem.hint == "keep one of them"
