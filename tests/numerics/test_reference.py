"""A run that torchtitan v0.2.2 recorded on a CPU in fp32, replayed as a plain recipe: initial
weights, rows and settings are its own.

The record is not part of the repository; where it lies beside the clone, these tests run.
"""

import json
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

RECORD = Path(__file__).parents[3] / "shared" / "reference" / "llama3_debug_fp32"
RECIPE = """
version: 1
name: reference
device: cpu
model: {{name: llama3, flavor: debugmodel, hf_assets_path: {record}}}
tokenizer: null
optimizer: {{lr: 8.0e-4}}
lr_scheduler: {{warmup_steps: 2, total_steps: 30, decay_ratio: 0.8}}
training:
  dataset: {{name: tokens, path: {record}/tokens.npy}}
  local_batch_size: 8
  seq_len: 256
  steps: {steps}
  mixed_precision_param: float32
checkpoint: {{initial_load_in_hf: true}}
metrics: {{log_freq: 1}}
"""

# Two units in the last place of fp32. With the recorder's vector instructions a plain loop gives
# all nine digits; other CPUs
# sum in another order, and then a plain loop is one unit off too, at 1.1e-7.
TWO_ULP = 2.4e-7


@pytest.mark.skipif(not RECORD.is_dir(), reason="the recorded run does not lie beside this clone")
@pytest.mark.parametrize("steps", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_losses_norms_and_rates_are_those_that_torchtitan_recorded(
    tmp_path: Path, steps: int
) -> None:
    recipe, resolved = tmp_path / "reference.yaml", tmp_path / "resolved.yaml"
    recipe.write_text(RECIPE.format(record=RECORD, steps=steps))
    resolved.write_text(resolve_recipe(str(recipe), environment={}).text)
    assert main([str(resolved)]) == 0
    recorded = [json.loads(line) for line in (RECORD / "steps.jsonl").read_text().splitlines()][
        :steps
    ]
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["lr"] for line in lines] == [line["lr"] for line in recorded]
    for name in ("loss", "grad_norm"):
        assert [line[name] for line in lines] == pytest.approx(
            [line[name] for line in recorded], rel=TWO_ULP, abs=0
        )
