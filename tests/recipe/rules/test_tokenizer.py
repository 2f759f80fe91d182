"""What is told about the chat template of a tokenizer is valid when it is obeyed."""

import shutil
from pathlib import Path

import yaml

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file


def find_template_problems(folder: Path, tokenizer: dict[str, object] | None) -> list[Problem]:
    """Return the problems of a recipe whose model's folder has a tokenizer with a template."""
    model = folder / "model"
    if not model.exists():
        shutil.copytree(TinyTokenizerConfig().folder, model)
    recipe = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel", "hf_assets_path": str(model)},
        "training": {"dataset": "tiny_chat", "steps": 4, "seq_len": 64},
    }
    file = folder / "mine.yaml"
    file.write_text(
        yaml.safe_dump(recipe if tokenizer is None else {**recipe, "tokenizer": tokenizer})
    )
    found = validate_file(str(file), [], level="environment", environment={}).problems
    return [problem for problem in found if problem.path[:1] == ("tokenizer",)]


def test_a_section_with_nothing_but_its_template_is_removed_as_a_whole(tmp_path: Path) -> None:
    (problem,) = find_template_problems(tmp_path, {"chat_template": "chatml"})
    assert (problem.hint or "").startswith("remove section tokenizer, since the tokenizer's folder")
    assert find_template_problems(tmp_path, None) == []


def test_a_section_with_other_settings_stays(tmp_path: Path) -> None:
    written = {"chat_template": "chatml", "stop_tokens": ["<|end_of_text|>"]}
    (problem,) = find_template_problems(tmp_path, written)
    assert (problem.hint or "").startswith("remove chat_template, since the tokenizer's folder")
    del written["chat_template"]
    assert find_template_problems(tmp_path, written) == []
