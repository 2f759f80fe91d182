"""`titanrun migrate FILE` of files that are no recipes and that it does not read: what to do."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Run = Callable[..., CompletedProcess[str]]
TRL = """\
model_name_or_path: Qwen/Qwen3-0.6B
dataset_name: trl-lib/Capybara
learning_rate: 2.0e-5
per_device_train_batch_size: 2
"""


@pytest.mark.parametrize("option", [[], ["--check"], ["--write"], ["-o", "new.yaml"]])
def test_a_configuration_of_trl_is_told_what_to_do(
    titanrun: Run, tmp_path: Path, option: list[str]
) -> None:
    (tmp_path / "theirs.yaml").write_text(TRL, encoding="utf-8")
    done = titanrun("migrate", "theirs.yaml", *option)
    assert (done.returncode, done.stdout) == (2, "")
    told = done.stderr
    assert "it looks like a configuration of TRL, which titanrun migrate cannot read" in told
    assert (
        "titanrun init --kind sft --model hub:Qwen/Qwen3-0.6B --data hub:trl-lib/Capybara " in told
    )
    assert "titanrun validate theirs.yaml tells what each key is here" in told
    hints = titanrun("validate", "theirs.yaml").stderr
    assert "write training.dataset.repo: trl-lib/Capybara" in hints
    for target in ("optimizer.lr", "training.local_batch_size"):
        assert f"is {target} here" in hints
    assert (tmp_path / "theirs.yaml").read_text(encoding="utf-8") == TRL


@pytest.mark.parametrize(
    "text", ["name_of_me: 1\nservices: {web: 2}\n", "{}\n"], ids=["keys", "nothing"]
)
def test_a_file_without_any_key_of_a_recipe_is_refused(
    titanrun: Run, tmp_path: Path, text: str
) -> None:
    (tmp_path / "other.yaml").write_text(text, encoding="utf-8")
    done = titanrun("migrate", "--check", "other.yaml")
    assert done.returncode == 2
    assert "this is not a recipe: it has none of the keys of one" in done.stderr
    assert "already version" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "trianing: {steps: 5}\n",
        "training.steps: 5\n",
        "converters+: [lora]\n",
        "recipe: mine.yaml\ngrid: {optimizer.lr: [1.0e-3]}\n",
        "version: 1\nmodel_name_or_path: x\n",
        "extends: mine.yaml\nmodel_name_or_path: x\n",
    ],
)
def test_parts_of_recipes_with_mistakes_and_sweeps_are_not_taken_for_other_files(
    titanrun: Run, tmp_path: Path, text: str
) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nmodel: llama3\n", encoding="utf-8")
    (tmp_path / "part.yaml").write_text(text, encoding="utf-8")
    done = titanrun("migrate", "--check", "part.yaml")
    assert (done.returncode, done.stderr) == (0, "part.yaml: already version 1\n")
