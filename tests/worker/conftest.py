"""A tiny run in a folder, resolved as `titanrun train` would, without a process of its own."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

RECIPE = """
version: 1
name: tiny-run
device: cpu
model: {name: llama3, flavor: null, vocab_size: 64, dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2,
        head_dim: 8, max_seq_len: 512,
        norm_eps: 1.0e-5, tie_word_embeddings: false, rope: {theta: 10000.0, scaling: null},
        feed_forward: {hidden_dim: 64, multiple_of: 32, ffn_dim_multiplier: null}}
tokenizer: null
optimizer: {lr: 1.0e-2}
lr_scheduler: {warmup_steps: 2}
training:
  dataset: {name: tokens, path: %s, shuffle: true}
  local_batch_size: 2
  global_batch_size: 4
  seq_len: 16
  steps: 10
  mixed_precision_param: float32
  data_cache: null
metrics: {log_freq: 1}
checkpoint: {enable: true, interval: 100, keep_latest_k: 0}
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """30 rows of 17 token ids that a model can learn: each id leads to one of two others."""
    return write_tokens(tmp_path / "tokens.npy")


def write_tokens(path: Path) -> Path:
    generator = np.random.Generator(np.random.PCG64(0))
    ids = np.empty((30, 17), dtype=np.uint16)
    ids[:, 0] = generator.integers(64, size=30)
    for column in range(1, 17):
        ids[:, column] = (ids[:, column - 1] * 5 + generator.integers(2, size=30)) % 64
    np.save(path, ids)
    return path


@pytest.fixture
def run(tmp_path: Path, tokens: Path) -> Callable[..., Path]:
    """Writes resolved.yaml of the tiny recipe with overrides into a run directory and gives its
    path."""
    return partial(write_run, tmp_path, tokens)


def write_run(parent: Path, tokens: Path, folder: str = "run", *overrides: str) -> Path:
    recipe = parent / "recipe.yaml"
    recipe.write_text(RECIPE % tokens)
    resolved = parent / folder / "resolved.yaml"
    resolved.parent.mkdir(exist_ok=True)
    resolved.write_text(resolve_recipe(str(recipe), overrides, environment={}).text)
    return resolved


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, float]]]:
    """Trains the tiny recipe with overrides, without checkpoints, and gives its metrics; once for
    the same overrides."""
    parent = tmp_path_factory.mktemp("runs")
    tokens = write_tokens(parent / "tokens.npy")

    @cache
    def train(*overrides: str) -> list[dict[str, float]]:
        resolved = write_run(
            parent,
            tokens,
            f"run-{len(list(parent.iterdir()))}",
            "checkpoint.enable=false",
            *overrides,
        )
        assert main([str(resolved)]) == 0
        return read_metrics(resolved.parent / "metrics.jsonl")

    return train
