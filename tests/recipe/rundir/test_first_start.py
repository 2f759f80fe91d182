"""Which checkpoint a run starts from again, after the run that it started from has trained on."""

import json
from pathlib import Path

import pytest

from titanrun.components.checkpoints.spec.manifest import (
    MANIFEST_FILE,
    Manifest,
    format_manifest,
)
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.checkpoint_lookup import find_parent_checkpoint
from titanrun.recipe.rundir.first_start import pin_initial_checkpoint


def save(run: Path, step: int, recipe: str = "first") -> Path:
    folder = run / "checkpoint" / f"step-{step}"
    folder.mkdir(parents=True)
    manifest = Manifest(
        step=step,
        holds="everything",
        layout={},
        versions={},
        recipe=recipe,
        saved_at="2026-11-28T05:00:00+00:00",
        tensors={},
        files={},
    )
    (folder / MANIFEST_FILE).write_text(format_manifest(manifest))
    return folder


def resolve(start: Path | None) -> Recipe:
    named = [] if start is None else [f"checkpoint.initial_load_path={start}"]
    overrides = ["checkpoint.enable=true", *named]
    return resolve_recipe("llama3_debug", overrides, environment={}).run


@pytest.fixture
def started(tmp_path: Path) -> tuple[Path, Path, Recipe]:
    """A run that started from another one, at its step 4."""
    before, after = tmp_path / "before", tmp_path / "after"
    save(before, 4)
    after.mkdir()
    recipe = resolve(before)
    (after / "run.json").write_text(json.dumps({"parent": find_parent_checkpoint(recipe)}))
    return before, after, recipe


def test_the_recorded_checkpoint_is_read_though_there_is_a_newer_one(
    started: tuple[Path, Path, Recipe],
) -> None:
    before, after, recipe = started
    save(before, 8)
    pinned = pin_initial_checkpoint(recipe, after).checkpoint
    assert pinned.initial_load_path == str(before / "checkpoint" / "step-4")
    # the run before was moved, and is named by its new place
    moved = before.rename(before.with_name("moved"))
    pinned = pin_initial_checkpoint(resolve(moved), after).checkpoint
    assert pinned.initial_load_path == str(moved / "checkpoint" / "step-4")


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_recorded_checkpoint_that_is_gone_or_another_is_told_if_it_is_read(
    is_replaced: bool, started: tuple[Path, Path, Recipe]
) -> None:
    before, after, recipe = started
    (before / "checkpoint").rename(before / "old")
    save(before, 4 if is_replaced else 8, "second")
    with pytest.raises(ProblemsFound, match="step-4', which is no longer there"):
        pin_initial_checkpoint(recipe, after)
    # a run with all weights in a checkpoint of its own does not read it
    save(after, 2)
    assert pin_initial_checkpoint(recipe, after) is recipe


def test_a_run_without_a_record_and_one_that_names_a_checkpoint_start_as_written(
    started: tuple[Path, Path, Recipe], tmp_path: Path
) -> None:
    before, after, recipe = started
    step = save(before, 8)
    named = resolve(step)
    assert pin_initial_checkpoint(named, after) is named
    assert pin_initial_checkpoint(recipe, tmp_path) is recipe
    plain = resolve(None)
    assert pin_initial_checkpoint(plain, after) is plain
