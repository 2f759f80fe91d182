"""A run of our own whose numbers are kept: they may not move unless someone means them to.

Where that is meant, `python tests/numerics/test_golden.py` writes golden.json anew, and its
difference is part of the change.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

GOLDEN = Path(__file__).with_name("golden.json")
NAMES = ("step", "loss", "grad_norm", "lr")
# CPUs sum in different orders; twenty steps carry that to the seventh digit
TOLERANCE = 1e-6

RECIPE = """
version: 1
name: golden
device: cpu
model: {{name: llama3, flavor: null, vocab_size: 96, dim: 64, n_layers: 2, n_heads: 4,
        n_kv_heads: 2, head_dim: 16, max_seq_len: 512,
        norm_eps: 1.0e-5, tie_word_embeddings: false, rope: {{theta: 10000.0,
        scaling: {{name: llama3}}}},
        feed_forward: {{hidden_dim: 128, multiple_of: 32, ffn_dim_multiplier: null}}}}
tokenizer: null
optimizer: {{lr: 1.0e-3}}
lr_scheduler: {{warmup_steps: 3, decay_ratio: 0.5, decay_type: cosine, min_lr_factor: 0.1}}
training:
  dataset: {{name: tokens, path: {tokens}, shuffle: true}}
  local_batch_size: 3
  global_batch_size: 6
  seq_len: 32
  steps: 20
  mixed_precision_param: float32
metrics: {{log_freq: 1}}
debug: {{seed: 17}}
"""


def trained(folder: Path) -> list[dict[str, float]]:
    """The logged numbers of the golden run."""
    tokens, recipe, resolved = (
        folder / "tokens.npy",
        folder / "golden.yaml",
        folder / "resolved.yaml",
    )
    np.save(tokens, np.arange(40 * 33).reshape(40, 33) ** 2 // 7 % 96)
    recipe.write_text(RECIPE.format(tokens=tokens))
    resolved.write_text(resolve_recipe(str(recipe), environment={}).text)
    assert main([str(resolved)]) == 0
    return [{name: line[name] for name in NAMES} for line in read_metrics(folder / "metrics.jsonl")]


def test_the_golden_run_has_its_golden_numbers(tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    lines = trained(tmp_path)
    assert [line["lr"] for line in lines] == [line["lr"] for line in golden]
    for name in NAMES:
        assert [line[name] for line in lines] == pytest.approx(
            [line[name] for line in golden], rel=TOLERANCE
        )


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        GOLDEN.write_text("[\n" + ",\n".join(map(json.dumps, trained(Path(scratch)))) + "\n]\n")
