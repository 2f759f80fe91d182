"""The chat template that a run was trained with is the one that is used and exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import HuggingFaceTokenizer
from titanrun.components.tokenizers.spec.tokenizer_files import open_tokenizer_folder
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.worker.build.build_generation_samples import render_sample_prompt
from titanrun.worker.commands.checkpoint import export_checkpoint_to_huggingface
from titanrun.worker.commands.generate import encode_prompt
from titanrun.worker.training_template import find_training_template
from titanrun.worker.weights.saved_weights import build_meta_model

TRAINED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
OTHER = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tokenizer with a template of its own, in both of its files."""
    folder = tmp_path / "assets"
    shutil.copytree(TinyTokenizerConfig().folder, folder)
    (folder / "chat_template.jinja").write_text(OTHER)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = OTHER
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "trained.jinja").write_text(TRAINED)
    return folder


def resolve(folder: Path, dataset: dict[str, Any]) -> Recipe:
    recipe = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel", "dim": 32, "n_layers": 1},
        "tokenizer": {"name": "huggingface", "path": str(folder)},
        "training": {"dataset": dataset, "seq_len": 64},
        "metrics": {"samples": {"prompts": ["Hi"], "freq": 10, "chat": True}},
    }
    file = folder.parent / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    return load_resolved_text(resolve_recipe(str(file), environment={}).text)


def chats(folder: Path, template: str | None = "trained.jinja") -> dict[str, Any]:
    named = {} if template is None else {"template": str(folder.parent / template)}
    return {"name": "chat", "path": "chats.jsonl", **named}


def export(recipe: Recipe, out: Path) -> str:
    """Return the chat template of an exported folder, as transformers reads it."""
    weights = {
        name: torch.zeros(tensor.shape)
        for name, tensor in build_meta_model(recipe).state_dict().items()
    }
    export_checkpoint_to_huggingface(out, weights, recipe, shard_bytes=10**9)
    return str(AutoTokenizer.from_pretrained(out).chat_template)


def test_an_export_holds_the_template_of_the_training(folder: Path, tmp_path: Path) -> None:
    """Row A14 of the defect list: an export had no chat_template.jinja."""
    assert export(resolve(folder, chats(folder)), tmp_path / "out") == TRAINED
    assert "chat_template" not in (tmp_path / "out" / "tokenizer_config.json").read_text()
    again = resolve(tmp_path / "out", chats(folder, None))
    assert export(again, tmp_path / "again") == TRAINED


def test_an_export_holds_the_template_of_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    assert export(resolve(folder, {"name": "tiny"}), tmp_path / "out") == OTHER
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {file.name for file in open_tokenizer_folder(folder).all_files} <= written


def test_prompts_are_rendered_with_the_template_of_the_training(folder: Path) -> None:
    """Row A14 of the defect list: `generate --chat` and samples took that of the tokenizer."""
    recipe = resolve(folder, chats(folder))
    tokenizer = HuggingFaceTokenizer(open_tokenizer_folder(folder))
    ids = encode_prompt("Hi", tokenizer, recipe, {"chat": True, "add_bos": False})
    assert tokenizer.decode(ids) == render_sample_prompt(recipe, "Hi") == "<user>Hi"


def test_a_template_in_a_mixture_is_found(folder: Path) -> None:
    sources = [{"dataset": chats(folder)}, {"dataset": {"name": "tiny"}}]
    mixture = {"name": "mixture", "sources": sources}
    assert find_training_template(resolve(folder, mixture)) == folder.parent / "trained.jinja"
    sources.append({"dataset": chats(folder, None)})
    assert find_training_template(resolve(folder, mixture)) is None


def test_a_template_that_is_gone_is_told_at_its_place(folder: Path) -> None:
    recipe = resolve(folder, chats(folder))
    (folder.parent / "trained.jinja").unlink()
    with pytest.raises(ProblemsFound) as caught:
        render_sample_prompt(recipe, "Hi")
    assert caught.value.problems[0].path == ("training", "dataset", "template")
