"""What a run left behind to compare with, and what cannot be reproduced."""

import json
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.run_history import load_run_history

RECIPE = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny, steps: 8}\n"
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was stopped after step 4, went on from step 2, and logged every step."""
    folder = tmp_path / "run"
    step = folder / "checkpoint" / "step-2"
    step.mkdir(parents=True)
    for place in (folder, step):
        (place / "resolved.yaml").write_text(RECIPE)
    (step / "manifest.json").write_text("{}")
    lines = [
        {"step": number, "loss": loss}
        for number, loss in ((1, 9), (2, 8), (3, 7), (4, 6), (3, 7.5), (4, 6.5), (5, 5))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "run.json").write_text(json.dumps({"starts": [{"cwd": "/a"}, {"cwd": "/b"}]}))
    return folder


def test_of_a_step_that_was_logged_twice_the_last_counts(run: Path) -> None:
    found = load_run_history(run, None)
    assert [line["loss"] for line in found.logged_steps] == [9, 8, 7.5, 6.5, 5]
    assert (found.last_step, len(found.starts), found.resolved_path) == (
        5,
        2,
        run / "resolved.yaml",
    )


def test_a_number_of_steps_bounds_it(run: Path) -> None:
    assert load_run_history(run, 3).last_step == 3
    assert load_run_history(run, 99).last_step == 5


def test_a_checkpoint_is_the_beginning_of_its_run_with_the_recipe_that_saved_it(run: Path) -> None:
    found = load_run_history(run / "checkpoint" / "step-2", None)
    assert (found.last_step, found.folder.name, found.resolved_path.parent.name) == (
        2,
        "run",
        "step-2",
    )
    assert load_run_history(run / "checkpoint" / "step-2", 1).last_step == 1


def test_where_nothing_can_be_compared_the_exit_code_is_2(run: Path, tmp_path: Path) -> None:
    (run / "checkpoint" / "step-2").rename(tmp_path / "step-2")
    (tmp_path / "empty").mkdir()
    cases = {
        "step-2": "is outside of its run directory",
        "empty": "neither a run directory",
        "nowhere": "folder not found",
    }
    for name, said in cases.items():
        with pytest.raises(ProblemsFound, match=said) as caught:
            load_run_history(tmp_path / name, None)
        assert caught.value.exit_code == 2
    (run / "metrics.jsonl").write_text('{"step": 5, "loss": 1}\n')
    with pytest.raises(
        ProblemsFound, match="has no logged steps up to step 3: nothing to reproduce"
    ):
        load_run_history(run, 3)
