"""A run that resumes does not need the folder that it once started from."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training: {dataset: tiny, seq_len: 64, steps: 20}
checkpoint: {enable: true, initial_load_path: runs/gone}
"""


@pytest.fixture(autouse=True)
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkpoint of the run."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    folder = tmp_path / "runs" / "mine" / "checkpoint" / "step-5"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    return folder


def is_folder_missed(*overrides: str) -> bool:
    try:
        resolve_recipe("mine.yaml", overrides, environment={}, should_check_inputs=True)
    except ProblemsFound as error:
        return any("folder not found: 'runs/gone'" in one.message for one in error.problems)
    return False


def test_a_checkpoint_with_all_weights_needs_no_others(saved: Path) -> None:
    assert not is_folder_missed("dump_folder=runs/mine")
    hf = ("checkpoint.initial_load_in_hf=true", "checkpoint.initial_load_in_hf_quantized=true")
    assert not is_folder_missed("dump_folder=runs/mine", *hf)
    (saved / "manifest.json").unlink()
    assert is_folder_missed("dump_folder=runs/mine")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("dump_folder=runs/other",),
        ("dump_folder=runs/mine", "checkpoint.enable=false"),
        ("dump_folder=runs/mine", "converters=[lora]", "checkpoint.adapters_only=true"),
        ("dump_folder=runs/mine", "loss=dpo"),
    ],
)
def test_new_runs_adapters_and_references_need_the_weights(overrides: tuple[str, ...]) -> None:
    assert is_folder_missed(*overrides)
