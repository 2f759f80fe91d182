"""An installed plug-in may fill every slot of a recipe, and what it brings is what runs."""

import os
import subprocess
import sys
from pathlib import Path

from titanrun.recipe.reference.schema_topics import get_topics

ROOT = Path(__file__).parents[2]
# as pip would leave it in site-packages
PLUGIN = Path(__file__).parent / "plugin"
RECIPE = """
version: 1
plugins: [noted]
device: cpu
model: {name: noted, vocab_size: 2048, dim: 16, n_layers: 1, n_heads: 2, max_seq_len: 64,
        norm_eps: 1.0e-5, tie_word_embeddings: true,
        attention: {backend: sdpa, mask: causal}, rope: {theta: 10000.0, scaling: noted},
        feed_forward: {hidden_dim: 16, multiple_of: 8, ffn_dim_multiplier: null}}
converters: [noted]
tokenizer: noted
optimizer: noted
lr_scheduler: noted
loss: noted
training: {dataset: noted, seq_len: 16, local_batch_size: 1, steps: 1,
           mixed_precision_param: float32}
activation_checkpoint: noted
replace: [{match: "layers.0.feed_forward", with: noted}]
metrics: {trackers: [noted]}
validation: {enable: true, dataset: {name: noted, split: held_out}, steps: 1}
launch: noted
"""


def test_what_a_plug_in_brings_is_what_runs_in_every_slot(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(PLUGIN), str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    command = [sys.executable, "-m", "titanrun", "train", "recipe.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    notes = (tmp_path / "notes.txt").read_text(encoding="utf-8").splitlines()
    every_slot = {topic.config.slot for topic in get_topics() if topic.is_slot}
    assert notes[0] == "launch"
    # these belong to another kind of run
    of_rewards = {"generator", "algorithm", "correction", "environment", "task", "reward"}
    assert set(notes) == every_slot - of_rewards - {"dataset"} | {
        "dataset train",
        "dataset held_out",
    }
