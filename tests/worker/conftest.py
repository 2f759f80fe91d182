"""A tiny run in a folder, resolved as `titanrun train` would, without a process of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from titanrun.recipe.resolve import resolve

RECIPE = """
version: 1
name: tiny-run
device: cpu
model: {name: llama3, flavor: null, vocab_size: 64, dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, head_dim: 8, max_seq_len: 512,
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
metrics: {log_freq: 1}
checkpoint: {enable: true, interval: 100}
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """30 rows of 17 token ids that a model can learn: each id leads to one of two others."""
    generator = np.random.Generator(np.random.PCG64(0))
    ids = np.empty((30, 17), dtype=np.uint16)
    ids[:, 0] = generator.integers(64, size=30)
    for column in range(1, 17):
        ids[:, column] = (ids[:, column - 1] * 5 + generator.integers(2, size=30)) % 64
    path = tmp_path / "tokens.npy"
    np.save(path, ids)
    return path


@pytest.fixture
def run(tmp_path: Path, tokens: Path) -> Callable[..., Path]:
    """Writes resolved.yaml of the tiny recipe with overrides into a run directory and gives its path."""

    def write(folder: str = "run", *overrides: str) -> Path:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(RECIPE % tokens)
        resolved = tmp_path / folder / "resolved.yaml"
        resolved.parent.mkdir(exist_ok=True)
        resolved.write_text(resolve(str(recipe), overrides, environment={}).text)
        return resolved

    return write
