"""What comes of other programs' configurations trains, and as a recipe does that says the same in
titanrun's words."""

from pathlib import Path
from shutil import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from titanrun.components.data.chat_config import TINY_CHAT
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.program_detection import PROGRAMS
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

TORCHTUNE = """
output_dir: {out}
model:
  _component_: torchtune.models.llama3.llama3
  vocab_size: 2048
  num_layers: 2
  num_heads: 4
  num_kv_heads: 2
  embed_dim: 32
  intermediate_dim: 64
  max_seq_len: 128
tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, path: {folder}/tokenizer.model,
             max_seq_len: 64}}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: {folder}
  checkpoint_files: [model.safetensors]
  output_dir: ${{output_dir}}
  model_type: LLAMA3
dataset:
  _component_: torchtune.datasets.chat_dataset
  source: json
  data_files: {data}
  conversation_column: messages
  conversation_style: openai
  packed: False
seed: 3
shuffle: True
optimizer: {{_component_: torch.optim.AdamW, lr: 2e-3, fused: True}}
lr_scheduler: {{_component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup,
                num_warmup_steps: 3}}
loss: {{_component_: torchtune.modules.loss.CEWithChunkedOutputLoss}}
batch_size: 4
gradient_accumulation_steps: 2
epochs: 2
max_steps_per_epoch: null
clip_grad_norm: null
device: cpu
dtype: fp32
"""
AXOLOTL = """
base_model: {folder}
datasets:
  - path: {data}
    type: chat_template
sequence_len: 64
excess_length_strategy: truncate
output_dir: {out}
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 2
learning_rate: 2e-3
optimizer: adamw_torch_fused
weight_decay: 0.01
lr_scheduler: cosine
warmup_steps: 3
bf16: false
max_grad_norm: 0
logging_steps: 1
seed: 3
"""
BY_HAND = """
version: 1
kind: sft
dump_folder: {out}
model:
  name: llama3
  flavor: null
  hf_assets_path: {folder}
  vocab_size: 2048
  dim: 32
  n_layers: 2
  n_heads: 4
  n_kv_heads: 2
  max_seq_len: 128
  norm_eps: 1.0e-5
  rope: {{theta: 500000.0, scaling: null}}
  feed_forward: {{hidden_dim: 64}}
training:
  dataset: {{name: chat, path: {data}, too_long: cut}}
  local_batch_size: 4
  global_batch_size: 8
  seq_len: 64
  epochs: 2
  max_norm: null
  mixed_precision_param: float32
optimizer: {{name: adamw, lr: 2.0e-3, weight_decay: 0.01, beta1: 0.9, beta2: 0.999}}
lr_scheduler: {{name: cosine, warmup_steps: 3, first_step: 0}}
loss: {{name: chunked_cross_entropy}}
checkpoint: {{enable: true, initial_load_in_hf: true}}
metrics: {{log_freq: 1}}
debug: {{seed: 3}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights with the tiny tokenizer, and conversations beside it."""
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    path = tmp_path_factory.mktemp("random")
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            max_position_embeddings=128,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            bos_token_id=0,
            **sizes,
        )
    ).save_pretrained(path)
    for file in TinyTokenizerConfig().folder.iterdir():
        if file.name.startswith(("tokenizer", "chat_template")):
            copy(file, path)
    lines = (TINY_CHAT / "train.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    (path / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def trained(file: Path) -> list[dict[str, float]]:
    """The metrics of a recipe's run."""
    run = resolve_recipe(str(file), ("device=cpu", "training.data_cache=null"), environment={})
    folder = file.with_suffix("")
    folder.mkdir()
    (folder / "resolved.yaml").write_text(run.text, encoding="utf-8")
    assert main([str(folder / "resolved.yaml")]) == 0
    return read_metrics(folder / "metrics.jsonl")


def compared(program: str, text: str, by_hand: str, folder: Path, tmp_path: Path) -> None:
    """The migrated configuration and the recipe written by hand give the same curve, bit for
    bit."""
    theirs, ours, mine = (
        tmp_path / name for name in ("config.yml", "migrated.yaml", "by_hand.yaml")
    )
    words = {"folder": folder, "data": folder / "chats.jsonl"}
    theirs.write_text(text.format(out=tmp_path / "migrated", **words), encoding="utf-8")
    mine.write_text(by_hand.format(out=tmp_path / "by_hand", **words), encoding="utf-8")
    migration = migrate_file(
        str(theirs), PROGRAMS[program], recipe_name="recipe.yaml", header_lines=()
    )
    assert migration.exit_code == 0, migration.problems
    ours.write_text(migration.text, encoding="utf-8")
    curves = [
        [(line["step"], line["loss"], line["grad_norm"], line["lr"]) for line in trained(file)]
        for file in (ours, mine)
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 10
    assert curves[0][-1][1] < curves[0][0][1]


@pytest.mark.slow
def test_a_configuration_of_torchtune_trains_as_the_recipe_written_by_hand(
    folder: Path, tmp_path: Path
) -> None:
    compared("torchtune", TORCHTUNE, BY_HAND, folder, tmp_path)


@pytest.mark.slow
def test_a_configuration_of_axolotl_trains_as_the_recipe_written_by_hand(
    folder: Path, tmp_path: Path
) -> None:
    compared(
        "axolotl",
        AXOLOTL,
        BY_HAND.replace("{{name: chunked_cross_entropy}}", "{{name: cross_entropy}}"),
        folder,
        tmp_path,
    )
