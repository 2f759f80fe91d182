"""The chat template that a run was trained with is the one that is used and exported."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from titanrun.components.checkpoints.checkpoint_reader import Snapshot
from titanrun.components.checkpoints.checkpoint_store import CheckpointStore
from titanrun.components.checkpoints.spec.storage_path import parse_storage_path
from titanrun.components.tokenizers.chat_template import load_chat_template
from titanrun.components.tokenizers.config import TinyTokenizerConfig, TokenizerConfig
from titanrun.components.tokenizers.huggingface import open_tokenizer
from titanrun.components.tokenizers.spec.tokenizer_files import open_tokenizer_folder
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.worker.build.build_generation_samples import (
    find_sample_end_ids,
    render_sample_prompt,
)
from titanrun.worker.commands.checkpoint import export_adapters, export_checkpoint_to_huggingface
from titanrun.worker.commands.generate import encode_prompt, find_stop_ids
from titanrun.worker.rank_main import main
from titanrun.worker.training_template import describe_training_template, trains_replies
from titanrun.worker.weights.saved_tokenizer import collect_assets, use_saved_tokenizer
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


def resolve(
    folder: Path, dataset: dict[str, Any], template: str | None = None, **sections: Any
) -> Recipe:
    named = None if template is None else str(folder.parent / template)
    recipe = {
        "version": 1,
        "model": {"name": "llama3", "flavor": "debugmodel", "dim": 32, "n_layers": 1},
        "tokenizer": {"path": str(folder), "chat_template": named},
        "training": {"dataset": dataset, "seq_len": 64},
        "metrics": {"samples": {"prompts": ["Hi"], "freq": 10, "chat": True}},
        **sections,
    }
    file = folder.parent / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    return load_resolved_text(resolve_recipe(str(file), environment={}).text)


CHATS: dict[str, Any] = {"name": "chat", "path": "chats.jsonl"}
OWN = "trained.jinja"


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
    assert export(resolve(folder, CHATS, OWN), tmp_path / "out") == TRAINED
    assert "chat_template" not in (tmp_path / "out" / "tokenizer_config.json").read_text()
    again = resolve(tmp_path / "out", CHATS)
    assert export(again, tmp_path / "again") == TRAINED


def test_the_export_at_the_end_of_a_run_holds_the_template_of_the_training(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / OWN).write_text(TRAINED)
    settings = (
        f"tokenizer={{name: tiny, chat_template: {tmp_path / OWN}}}",
        *("training.dataset=tiny_chat", "model.vocab_size=2048", "training.seq_len=128"),
        *("training.steps=1", "checkpoint.last_save_in_hf=true"),
    )
    resolved = run("run", *settings)
    assert main([str(resolved)]) == 0
    assert AutoTokenizer.from_pretrained(resolved.parent / "hf").chat_template == TRAINED


def test_an_export_holds_the_template_of_the_tokenizer(folder: Path, tmp_path: Path) -> None:
    assert export(resolve(folder, {"name": "tiny"}), tmp_path / "out") == OTHER
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {file.name for file in open_tokenizer_folder(folder).all_files} <= written


def test_an_export_of_adapters_holds_the_tokenizer_and_the_template(
    folder: Path, tmp_path: Path
) -> None:
    """Row A14 of the defect list: adapters alone had neither."""
    lora = [{"name": "lora", "rank": 2, "target_modules": ["wq"]}]
    recipe = resolve(folder, CHATS, OWN, converters=lora)
    adapters = {
        "layers.0.attention.wq.lora_a": torch.zeros(2, 32),
        "layers.0.attention.wq.lora_b": torch.zeros(32, 2),
    }
    export_adapters(tmp_path / "out", adapters, recipe)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.chat_template == TRAINED
    assert (
        theirs("Hello there")["input_ids"]
        == AutoTokenizer.from_pretrained(folder)("Hello there")["input_ids"]
    )
    written = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= written
    assert "generation_config.json" not in written
    assert "chat_template" not in (tmp_path / "out" / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_a_checkpoint_holds_the_tokenizer_and_the_template(
    folder: Path, tmp_path: Path, store: str
) -> None:
    """transformers reads them there, and titanrun when the files of the training are gone."""
    recipe = resolve(folder, CHATS, OWN)
    place = str(tmp_path / "saved") if store == "disk" else f"memory://{tmp_path.name}"
    checkpoints = CheckpointStore(folder=parse_storage_path(place))
    snapshot = Snapshot(step=1, tensors={}, state={}, rng={}, resolved_yaml="a: 1\n")
    checkpoints.save(replace(snapshot, assets=collect_assets(recipe)))
    shutil.rmtree(folder)
    (folder.parent / OWN).unlink()
    saved = checkpoints.get_checkpoint(1)
    assert saved.load_manifest().files.keys() >= {"chat_template.jinja", "tokenizer.json"}
    found = use_saved_tokenizer(recipe, saved.folder).tokenizer
    assert isinstance(found, TokenizerConfig)
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    theirs = AutoTokenizer.from_pretrained(found.folder)
    expected = theirs.apply_chat_template(talk, tokenize=False)
    assert load_chat_template(found).render(talk) == expected == "<user>Hi<assistant>Ho"


def test_a_checkpoint_without_a_tokenizer_takes_that_of_the_recipe(
    folder: Path, tmp_path: Path
) -> None:
    recipe = resolve(folder, CHATS, OWN)
    checkpoints = CheckpointStore(folder=tmp_path / "saved")
    checkpoints.save(Snapshot(step=1, tensors={}, state={}, rng={}, resolved_yaml="a: 1\n"))
    assert use_saved_tokenizer(recipe, checkpoints.get_checkpoint(1).folder) is recipe


def test_prompts_are_rendered_with_the_template_of_the_training(folder: Path) -> None:
    """Row A14 of the defect list: `generate --chat` and samples took that of the tokenizer."""
    recipe = resolve(folder, CHATS, OWN)
    tokenizer = open_tokenizer(recipe.tokenizer)
    ids = encode_prompt("Hi", tokenizer, recipe, {"chat": True, "add_bos": False})
    assert tokenizer.decode(ids) == render_sample_prompt(recipe, "Hi") == "<user>Hi"


def test_chats_stop_at_the_end_of_a_turn(folder: Path) -> None:
    """Section 4.4 of the specification: replies end with another token than eos_token."""
    oracle = AutoTokenizer.from_pretrained(folder)
    oracle.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    oracle.save_pretrained(folder)
    end_id = oracle.convert_tokens_to_ids("<|im_end|>")
    (folder.parent / "trained.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    )
    recipe = resolve(folder, CHATS, OWN)
    tokenizer = open_tokenizer(recipe.tokenizer)
    both = {oracle.eos_token_id, end_id}
    assert find_stop_ids(tokenizer, recipe, {"chat": True}) == both
    assert find_sample_end_ids(recipe, tokenizer) == both
    assert find_stop_ids(tokenizer, recipe, {"chat": False}) == {oracle.eos_token_id}
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    assert find_stop_ids(tokenizer, recipe, {"chat": True}) == both | {5, 7}


@pytest.mark.parametrize("has_settings", [False, True])
def test_an_export_names_the_token_that_ends_a_reply(
    folder: Path, tmp_path: Path, has_settings: bool
) -> None:
    """transformers stops at the ids that generation_config.json lists."""
    oracle = AutoTokenizer.from_pretrained(folder)
    oracle.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    oracle.save_pretrained(folder)
    end_id = oracle.convert_tokens_to_ids("<|im_end|>")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    )
    model: dict[str, Any] = {"name": "llama3", "flavor": "debugmodel", "dim": 32, "n_layers": 1}
    if has_settings:
        (folder / "generation_config.json").write_text('{"eos_token_id": 5, "top_k": 20}')
        model["hf_assets_path"] = str(folder)
    export(resolve(folder, CHATS, model=model), tmp_path / "out")
    theirs = GenerationConfig.from_pretrained(tmp_path / "out")
    known = {5} if has_settings else set()
    assert set(theirs.eos_token_id) == {oracle.eos_token_id, end_id} | known
    assert not has_settings or theirs.top_k == 20
    export(resolve(folder, {"name": "tiny"}, model=model), tmp_path / "texts")
    plain = GenerationConfig.from_pretrained(tmp_path / "texts")
    assert plain.eos_token_id == (5 if has_settings else oracle.eos_token_id)


def test_generation_stops_at_further_tokens_that_a_recipe_names(
    folder: Path, tmp_path: Path
) -> None:
    """Also for plain texts, and in transformers, which reads generation_config.json."""
    names = {"path": str(folder), "stop_tokens": ["<|begin_of_text|>"]}
    recipe = resolve(folder, {"name": "tiny"}, tokenizer=names)
    oracle = AutoTokenizer.from_pretrained(folder)
    both = {oracle.eos_token_id, oracle.bos_token_id}
    tokenizer = open_tokenizer(recipe.tokenizer)
    assert find_stop_ids(tokenizer, recipe, {"chat": False}) == both
    assert find_stop_ids(tokenizer, recipe, {"chat": True}) == both
    export(recipe, tmp_path / "out")
    assert set(GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id) == both


def test_a_template_that_is_gone_is_told_at_its_place(folder: Path) -> None:
    recipe = resolve(folder, CHATS, OWN)
    (folder.parent / "trained.jinja").unlink()
    with pytest.raises(ProblemsFound) as caught:
        render_sample_prompt(recipe, "Hi")
    assert caught.value.problems[0].path == ("tokenizer", "chat_template")


def test_the_start_names_the_template_and_how_it_ends_replies(folder: Path) -> None:
    def describe(template: str | None) -> str:
        recipe = resolve(folder, {"name": "tiny_chat"}, template)
        assert trains_replies(recipe)
        return describe_training_template(recipe)

    own = folder / "chat_template.jinja"
    assert describe(None) == f"chat template: {own}"
    assert describe("trained.jinja") == f"chat template: {folder.parent / 'trained.jinja'}"
    shutil.copy(TinyTokenizerConfig().folder / "chat_template.jinja", own)
    assert describe(None) == f"chat template: {own}, replies end with <|end_of_text|>"
    own.unlink()
    assert describe(None) == f"chat template: {folder / 'tokenizer_config.json'}"
    assert not trains_replies(resolve(folder, {"name": "tiny"}))
