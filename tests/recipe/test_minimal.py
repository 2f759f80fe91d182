"""`show --minimal`: as little as resolves to the same run."""

from pathlib import Path

import pytest

from titanrun.config.base import dump
from titanrun.config.emit import emit
from titanrun.config.interpolate import escaped
from titanrun.recipe.minimal import minimal
from titanrun.recipe.resolve import resolve
from titanrun.recipe.sources import data_leaves

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "recipes").iterdir() if path.suffix in (".yaml", ".toml"))
CUSTOM = ["model={name: llama3, vocab_size: 4096, dim: 64, n_layers: 2, n_heads: 4, feed_forward: {multiple_of: 8}}", "tokenizer=tiny"]
CHANGES: list[list[str]] = [
    [],
    ["description=costs $${5}, twice", "lr_scheduler.warmup_steps=12", "training.steps=1000"],
    ["metrics.trackers=[{name: tensorboard, folder: tb}, tensorboard]", "loss=cross_entropy"],
]
# what other recipes say about layouts, experts and conversations does not fit so small a model
SMALL_ENOUGH = ("llama3_debug.yaml", "llama3_debug.toml", "llama3_8b.yaml", "llama3_tiny_learn.yaml")
OTHER_MODELS: list[list[str]] = [["activation_checkpoint=full", "training.global_batch_size=16", "model.n_layers=2"], CUSTOM]
CASES = [
    pytest.param(path, changes, id=f"{path.name}-{changes}")
    for path in RECIPES
    for changes in (*CHANGES, *(OTHER_MODELS if path.name in SMALL_ENOUGH else []))
]


@pytest.mark.parametrize(("path", "changes"), CASES)
def test_the_minimal_recipe_resolves_to_the_same_bytes(
    path: Path, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    resolved = resolve(str(path), changes, environment={})
    text = emit(escaped(minimal(resolved.run)))
    (tmp_path / "short.yaml").write_text(text, encoding="utf-8")
    assert resolve(str(tmp_path / "short.yaml"), environment={}).text == resolved.text
    (tmp_path / "resolved.yaml").write_text(resolved.text, encoding="utf-8")
    assert emit(escaped(minimal(resolve(str(tmp_path / "resolved.yaml"), environment={}).run))) == text


def test_nothing_that_follows_by_itself_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    resolved = resolve("recipes/llama3_debug.yaml", CHANGES[2], environment={})
    short = minimal(resolved.run)
    assert short["metrics"]["trackers"] == [{"name": "tensorboard", "folder": "tb"}, "tensorboard"]
    assert short["model"] == {"name": "llama3", "flavor": "debugmodel"}
    assert short["training"]["dataset"] == "tiny"
    assert short["optimizer"] == {"lr": 0.002}
    assert not {"loss", "debug", "launch"} & set(short)
    assert len(data_leaves(short)) < len(data_leaves(dump(resolved.run))) / 4
