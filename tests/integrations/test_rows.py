"""What docs/training_engine.md says of recipes and of an engine without data, where no other test
shows the whole of it."""

import json
from pathlib import Path

import pytest
import torch

from tests.recipe.test_round_trip import leaves
from titanrun.cli import diff_config, validate
from titanrun.components.data.token_batch import TokenBatch
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.base import dump_config
from titanrun.config.interpolate import escape_references
from titanrun.config.problems import ProblemsFound
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.tree import format_path
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.open_engine import open_engine
from titanrun.worker.rank_main import main

ROOT = Path(__file__).parents[2]
DEBUG = ROOT / "recipes" / "llama3_debug.yaml"
WITHOUT_DATA = (
    "version: 1\ndevice: cpu\nmodel: {name: llama3, flavor: debugmodel, n_layers: "
    "1}\ntokenizer: characters\n"
    "training: {dataset: {name: text, path: nowhere.txt}, local_batch_size: 1, seq_len: 16, "
    "steps: 1, mixed_precision_param: float32}\n"
)


def test_a_misspelt_key_ends_validate_with_its_place_and_the_right_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "bad.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining:\n  dataset: tiny\n  "
        "stpes: 3\n"
    )
    assert validate.run([str(recipe)]) == 2
    said = capsys.readouterr().err
    assert f"{recipe}:5:3" in said and "did you mean 'steps'?" in said


def test_a_derived_recipe_is_its_base_and_what_it_says_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    derived = tmp_path / "derived.yaml"
    derived.write_text(f"version: 1\nname: derived\nextends: [{DEBUG}]\noptimizer: {{lr: 0.5}}\n")
    assert diff_config.run([str(DEBUG), str(derived), "--format", "json"]) == 1
    found = {
        line["path"]: line["b"] for line in map(json.loads, capsys.readouterr().out.splitlines())
    }
    assert found == {"name": "derived", "optimizer.lr": 0.5}


@pytest.mark.slow
def test_every_leaf_of_every_recipe_takes_its_own_value_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    base = tmp_path / "recipe.yaml"
    base.write_text("x-nothing: here\n")
    whole = [
        path
        for path in sorted(Path("recipes").rglob("*.yaml"))
        if path.parent.name != "parts" and "\nstages:" not in path.read_text()
    ]
    for recipe in whole:
        resolved = resolve_recipe(str(recipe), environment={})
        overrides = [
            f"{format_path(path)}={to_flow_yaml(value)}"
            for path, value in leaves(escape_references(dump_config(resolved.recipe)))
        ]
        assert (
            len(overrides) > 100
            and resolve_recipe(str(base), overrides, environment={}).text == resolved.text
        ), recipe
    assert len(whole) > 30


def test_a_value_of_the_wrong_type_ends_validate(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.run([str(DEBUG), "training.steps=many"]) == 2
    assert "(training.steps)" in capsys.readouterr().err


def test_a_new_model_of_four_layers_learns_without_python(tmp_path: Path) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(
        "version: 1\ndevice: cpu\nmodel:\n  {name: decoder, vocab_size: 2048, dim: 32, "
        "n_layers: 4, n_heads: 2, max_seq_len: 64,\n"
        "  feed_forward: {hidden_dim: 64}, hidden_pattern: [dense, experts], moe: "
        "{num_experts: 4, top_k: 2, hidden_dim: 32}}\n"
        "training: {dataset: tiny, local_batch_size: 4, seq_len: 32, steps: 8, "
        "mixed_precision_param: float32}\n"
        "optimizer: {lr: 3.0e-3}\nlr_scheduler: {warmup_steps: 1}\nmetrics: {log_freq: 1}\n"
    )
    folder.mkdir()
    (folder / "resolved.yaml").write_text(resolve_recipe(str(recipe), environment={}).text)
    assert main([str(folder / "resolved.yaml")]) == 0
    losses = [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if "loss" in line]
    assert len(losses) == 8 and losses[-1] < losses[0] - 0.2


def test_an_engine_opens_no_data_and_who_trains_hears_which_key_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(WITHOUT_DATA)
    opened = open_engine(str(recipe))
    opened.engine.forward_backward(TokenBatch.from_sequences(torch.arange(17).unsqueeze(0)))
    assert not opened.engine.optim_step().is_skipped
    opened.close()
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(resolve_recipe(str(recipe), environment={}).text)
    assert main([str(resolved)]) == 3
    assert "training.dataset.path" in capsys.readouterr().err
    recipe.write_text("version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {}\n")
    with pytest.raises(ProblemsFound, match="missing required key 'dataset'"):
        resolve_recipe(str(recipe), environment={})
