"""A model that was renamed after a run: one option tells all commands where it is now."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from tests.cli.model_hub import write_model
from titanrun.cli.arguments import split_overrides
from titanrun.config.problems import ProblemsFound, SourceText
from titanrun.config.read_source import read_source_text
from titanrun.recipe.moved_paths import MOVED_VARIABLE, find_moved_paths, parse_moved_path
from titanrun.recipe.resolving.resolve import load_resolved, resolve_recipe
from titanrun.recipe.rundir.started_from import build_moved_overrides, check_start_exists

RECIPE = """
version: 1
kind: sft
model: {name: llama3, flavor: auto, hf_assets_path: models/base}
tokenizer: tiny
converters: [{name: lora, rank: 2, alpha: 4}]
training:
  dataset: {name: chat, path: chats.jsonl}
  seq_len: 64
  steps: 2
validation: {dataset: {name: chat, path: chats.jsonl}}
checkpoint: {enable: true, adapters_only: true}
"""
MOVED = ("--moved", "models/base=models/llama")
Titanrun = Callable[..., "subprocess.CompletedProcess[str]"]


def find_moved(text: str, moved: dict[str, str]) -> dict[tuple[int | str, ...], str]:
    return dict(find_moved_paths(read_source_text(SourceText("r.yaml", text), "yaml"), moved))


def test_a_path_moves_with_its_folder() -> None:
    text = "model: {name: models, hf_assets_path: models/base}\ntokenizer: {path: models/base/tok}"
    assert find_moved(text, {"models/base": "here"}) == {
        ("model", "hf_assets_path"): "here",
        ("tokenizer", "path"): "here/tok",
    }
    whole = {("model", "hf_assets_path"): "old/base", ("tokenizer", "path"): "old/base/tok"}
    # a name is no path, and a folder may be named by its whole path
    assert find_moved(text, {"models": "old"}) == whole
    assert find_moved(text, {str(Path("models").absolute()): "old"}) == whole
    assert find_moved(text, {"model": "old"}) == {}


def test_a_path_is_not_moved_twice() -> None:
    moved = {"models": "models/old"}
    assert find_moved("path: models/base", moved) == {("path",): "models/old/base"}
    assert find_moved("path: models/old/base", moved) == {}


def test_the_new_place_has_to_exist(tmp_path: Path) -> None:
    assert parse_moved_path(f"a={tmp_path}") == ("a", str(tmp_path))
    for text, words in (("a", "OLD=NEW"), (f"a={tmp_path}/none", "where it is now")):
        with pytest.raises(ProblemsFound) as caught:
            parse_moved_path(text)
        assert words in str(caught.value.problems[0].hint)


def test_its_value_is_no_override() -> None:
    words = ["run", "--moved", "old=new", "training.steps=3"]
    assert split_overrides(words) == (["training.steps=3"], ["run", "--moved", "old=new"])


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a checkpoint of adapters whose base model has been renamed."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "models" / "base"
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    sizes |= {"intermediate_size": 64, "vocab_size": 2048, "rms_norm_eps": 1e-5}
    config = {"model_type": "llama", "rope_theta": 1e4, "torch_dtype": "float32", **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    (tmp_path / "r.yaml").write_text(RECIPE)
    checkpoint = tmp_path / "step-2"
    checkpoint.mkdir()
    text = resolve_recipe("r.yaml", environment={}).text
    (checkpoint / "resolved.yaml").write_text(text)
    folder.rename(tmp_path / "models" / "llama")
    return checkpoint


def test_adapters_without_their_model_name_the_option(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProblemsFound) as caught:
        check_start_exists(saved)
    (problem,) = caught.value.problems
    assert problem.message.startswith("folder not found: 'models/base', the weights that the run")
    assert problem.hint == "if it was moved or renamed, add --moved models/base=NEW"
    monkeypatch.setenv(MOVED_VARIABLE, json.dumps({"models/base": "models/llama"}))
    check_start_exists(saved)
    assert load_resolved(saved / "resolved.yaml").model.hf_assets_path == "models/llama"
    overrides = build_moved_overrides(str(saved / "resolved.yaml"))
    assert "model.hf_assets_path=models/llama" in [word.replace('"', "") for word in overrides]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_finds_a_model_that_was_renamed(titanrun: Titanrun, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "base")
    chats = [
        {"role": "user", "content": "Say moon"},
        {"role": "assistant", "content": "moon"},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chats}) + "\n")
    # the tokenizer of the model, which moves with it
    (tmp_path / "r.yaml").write_text(RECIPE.replace("tokenizer: tiny\n", ""))
    done = titanrun("train", "r.yaml", "dump_folder=run", "-q")
    assert done.returncode == 0, done.stderr
    (tmp_path / "models" / "base").rename(tmp_path / "models" / "llama")
    copytree(tmp_path / "run", tmp_path / "again")
    commands = [
        ("generate", "run", "--prompt", "x", "--max-new-tokens", "2"),
        ("generate", "run", "--prompt", "x", "--max-new-tokens", "2", "--nproc", "2"),
        ("eval", "run"),
        ("checkpoint", "export", "run", "out", "--format", "hf", "--merge"),
        ("push", "run", "me/mine", "--dry-run"),
        ("chat", "run", "--temperature", "0"),
        ("resume", "again", "training.steps=3"),
    ]
    for words in commands:
        done = titanrun(*words)
        assert "--moved models/base=NEW" in done.stderr, (words, done.stderr)
        assert done.returncode != 0, words
        done = titanrun(*words, *MOVED)
        assert done.returncode == 0, (words, done.stderr)
        assert "warning" not in done.stderr, (words, done.stderr)
    # the run has the new path from here on
    assert 'hf_assets_path: "models/llama"' in (tmp_path / "again" / "resolved.yaml").read_text()
    assert titanrun("resume", "again", "training.steps=4").returncode == 0
