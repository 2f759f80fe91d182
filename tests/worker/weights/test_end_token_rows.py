"""A warning of an end of turn whose frozen embedding the base model never trained."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.spec.tokenizer_files import load_vocab
from titanrun.recipe.resolving.resolve import load_resolved_text, resolve_recipe
from titanrun.worker.rank_main import main
from titanrun.worker.weights.end_token_rows import find_untrained_end_row

SIZES = {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_heads": 2}
END = "<|end_of_text|>"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model of transformers, with equal norms of its embeddings but that of the end of turn."""
    folder = tmp_path / "base"
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
    LlamaForCausalLM(LlamaConfig(vocab_size=2048, **sizes, **heads)).save_pretrained(folder)
    return folder


def scale_end_row(folder: Path, share: float) -> None:
    """Set the norm of the row of the end of turn, as a share of the median."""
    model = LlamaForCausalLM.from_pretrained(folder)
    table = model.get_input_embeddings().weight.data
    row = table[load_vocab(TinyTokenizerConfig().folder)[END]]
    row *= share * table.norm(dim=1).median() / row.norm()
    model.save_pretrained(folder)


def resolve(tmp_path: Path, base: Path, *overrides: str) -> str:
    recipe = {
        "version": 1,
        "kind": "sft",
        "model": {
            "name": "llama3",
            "flavor": "debugmodel",
            **SIZES,
            "feed_forward": {"hidden_dim": 64},
            "hf_assets_path": str(base),
            "attention": {"mask": "block_causal"},
        },
        "tokenizer": "tiny",
        "training": {"dataset": {"name": "tiny_chat"}, "seq_len": 64, "steps": 1},
        "converters": [{"name": "lora"}],
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    return resolve_recipe(str(file), overrides, environment={}).text


def test_a_row_that_was_never_trained_is_warned_of(tmp_path: Path, base: Path) -> None:
    def find(*overrides: str) -> Any:
        return find_untrained_end_row(load_resolved_text(resolve(tmp_path, base, *overrides)))

    scale_end_row(base, 0.09)
    found = find()
    assert found is not None and found.severity == "warning"
    assert found.message.startswith(f"the embedding of '{END}', which ends replies, has 9.0% of")
    assert find("converters=[]") is None
    pretrain = ("kind=pretrain", "checkpoint.initial_load_in_hf=true")
    assert find("training.dataset={name: tiny}", *pretrain) is None
    scale_end_row(base, 0.11)
    assert find() is None


def test_the_start_and_the_level_build_say_it(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scale_end_row(base, 0.01)
    resolved = tmp_path / "run" / "resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(resolve(tmp_path, base))
    caplog.set_level(logging.WARNING)
    assert main([str(resolved)]) == 0
    assert [one.levelname for one in caplog.records if "1.0% of the" in one.message] == ["WARNING"]
    command = [sys.executable, "-m", "titanrun", "validate", str(tmp_path / "recipe.yaml")]
    done = subprocess.run(
        [*command, "--level", "build"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "[conflict/end-of-turn-embedding]" in done.stderr


def test_a_checkpoint_of_titanrun_is_read_too(tmp_path: Path, base: Path) -> None:
    scale_end_row(base, 0.01)
    whole = tmp_path / "whole" / "resolved.yaml"
    whole.parent.mkdir()
    whole.write_text(resolve(tmp_path, base, "converters=[]", "optimizer.lr=1.0e-30"))
    assert main([str(whole)]) == 0
    start = f"checkpoint.initial_load_path={whole.parent}"
    text = resolve(tmp_path, base, start, "checkpoint.initial_load_in_hf=false")
    found = find_untrained_end_row(load_resolved_text(text))
    assert found is not None and "has 1.0% of" in found.message
