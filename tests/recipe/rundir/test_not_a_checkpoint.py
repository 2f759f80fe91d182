"""What is said of a path that is no run: what it is, and what to name."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir.checkpoint_lookup import select_checkpoint


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("a.gguf", "is a file, not a run", "name the run that it was exported from; llama.cpp"),
        ("r.yaml", "is a file, not a run", "train the recipe first, then name its run"),
        ("model.safetensors", "is a file, not a run", "name the folder that holds it: "),
        ("a.jsonl", "is a file, not a run", "name a run or a folder step-N of one"),
        ("empty/", "with one: it is an empty folder", "name a run or a folder step-N of one"),
        ("adapter/adapter_config.json", "holds adapters without the model", "--from peft"),
        ("other/file", "is neither a checkpoint nor a run", "name a run or a folder step-N of"),
    ],
)
def test_a_path_that_is_no_run_says_what_it_is(
    name: str, message: str, hint: str, tmp_path: Path
) -> None:
    folder, _, file = name.rpartition("/")
    (tmp_path / folder).mkdir(exist_ok=True)
    if file:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ProblemsFound) as caught:
        select_checkpoint(tmp_path / (folder or name))
    (problem,) = caught.value.problems
    assert message in problem.message
    assert hint in str(problem.hint)


def test_the_help_names_models_where_they_are_taken(tmp_path: Path) -> None:
    with pytest.raises(ProblemsFound) as caught:
        select_checkpoint(tmp_path, takes_models=True)
    assert str(caught.value.problems[0].hint).endswith("or a folder with a model's config.json")
