"""Where the initial weights come from if a recipe does not say it."""

import json
from pathlib import Path

import pytest

from titanrun.components.checkpoints.config import CheckpointConfig
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """\
version: 1
kind: {kind}
model: {{name: llama3, flavor: debugmodel, hf_assets_path: {folder}}}
tokenizer: tiny
training: {{dataset: {{name: tiny_chat}}, steps: 2, seq_len: 64}}
"""
STAGES = """\
stages:
  - {id: sft}
  - {id: again}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with weights."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").touch()
    (tmp_path / "weights" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path / "weights"


def resolve(folder: Path, *overrides: str, kind: str = "sft", tail: str = "") -> CheckpointConfig:
    stage = "#again" if tail else ""
    file = folder.parent / "mine.yaml"
    file.write_text(RECIPE.format(kind=kind, folder=folder) + tail)
    return resolve_recipe(f"{file}{stage}", overrides, environment={}).run.checkpoint


def test_training_that_follows_pretraining_starts_from_the_weights_of_the_folder(
    folder: Path,
) -> None:
    section = resolve(folder)
    assert (section.initial_load_path, section.initial_load_in_hf) == (str(folder), True)


@pytest.mark.parametrize(
    "overrides",
    [
        ["kind=pretrain"],
        ["checkpoint.initial_load_path=null"],
        ["checkpoint.initial_load_in_hf=false"],
    ],
)
def test_pretraining_and_what_is_written_stay(folder: Path, overrides: list[str]) -> None:
    section = resolve(folder, *overrides)
    assert (section.initial_load_path, section.initial_load_in_hf) == (None, False)


def test_a_folder_without_weights_starts_from_random_ones(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    section = resolve(folder)
    assert (section.initial_load_path, section.initial_load_in_hf) == (None, False)


def test_a_later_stage_starts_from_the_one_before_it(folder: Path) -> None:
    section = resolve(folder, tail=STAGES)
    assert (section.initial_load_path, section.initial_load_in_hf) == (None, False)


def test_a_stage_after_an_evaluation_starts_from_the_folder(folder: Path) -> None:
    section = resolve(folder, tail=STAGES.replace("{id: sft}", "{id: sft, kind: eval}"))
    assert section.initial_load_in_hf


@pytest.mark.parametrize("place", ["run", "run/checkpoint", "run/checkpoint/step-0"])
def test_a_run_or_checkpoint_is_read_as_one_also_in_a_recipe_for_a_folder_of_transformers(
    folder: Path, place: str
) -> None:
    step = folder.parent / "run" / "checkpoint" / "step-0"
    step.mkdir(parents=True)
    (step / "manifest.json").write_text("{}")
    (step / "rng-rank-0.safetensors").touch()
    named = f"checkpoint.initial_load_path={folder.parent / place}"
    in_hf = "checkpoint.initial_load_in_hf=true"
    quantized = "checkpoint.initial_load_in_hf_quantized=true"
    for overrides in ([named], [named, in_hf], [named, in_hf, quantized]):
        section = resolve(folder, *overrides)
        assert not section.initial_load_in_hf
        assert not section.initial_load_in_hf_quantized


def test_a_folder_of_transformers_stays_one_beside_checkpoints(folder: Path) -> None:
    (folder / "checkpoint" / "step-0").mkdir(parents=True)
    (folder / "checkpoint" / "step-0" / "manifest.json").write_text("{}")
    in_hf = "checkpoint.initial_load_in_hf=true"
    assert resolve(folder, in_hf, f"checkpoint.initial_load_path={folder}").initial_load_in_hf
