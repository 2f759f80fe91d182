"""The recipes of the tasks that newcomers have: each trains at debug size on data as its file names
them, and what it needs by its estimate fits into the GPUs that it names."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3Config, Qwen3ForCausalLM

from titanrun.cli import plan
from titanrun.recipe.reference import shipped_recipes
from titanrun.recipe.resolving.resolve import resolve_recipe

TINY = Path(__file__).parents[2] / "titanrun" / "assets" / "tiny"
SIZES = "vocab_size: 2064, dim: 32, n_layers: 2, n_heads: 4, n_kv_heads: 2, head_dim: 16"
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
CHAT = [{"role": "user", "content": "Say moon"}, {"role": "assistant", "content": "moon"}]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
}
TOOL_CHAT = [CHAT[0], CALL, {"role": "tool", "content": "2"}, CHAT[1]]
RECORDS: dict[str, dict[str, Any]] = {
    "chats": {"messages": CHAT},
    "tool_chats": {"messages": TOOL_CHAT, "tools": [TOOL]},
    "pairs": {"prompt": "Say moon", "chosen": "moon", "rejected": "sun"},
    "texts": {"text": "The moon is above the hill. " * 20},
    "documents": {"text": "The moon is above the hill. " * 200},
}
TRAINED = ("chat_llama3_8b_qlora", "chat_qwen3_8b_lora")
NAMES = (
    "chat_base_to_chat",
    "chat_qwen3_0.6b",
    "continue_pretraining_lora",
    "distill_qwen3_8b_to_0.6b",
    "long_documents_32k",
    "prefer_qwen3_4b_dpo_lora",
    "prefer_qwen3_4b_orpo",
    "tool_calls_qwen3",
)
# of Qwen3 8B
TEACHER = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}
SMALL_TEACHER = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 2064,
}
TEACHER_FOLDER = "assets/hf/Qwen3-8B"
ONE_GPU = re.compile(r"1 GPU with (\d+) GB")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with data of every kind, and a tokenizer with the marks of chatml."""
    for kind, record in RECORDS.items():
        folder = tmp_path / "data" / kind
        folder.mkdir(parents=True)
        # in the texts, too: a hash decides which of them are held out
        lines = [json.dumps(record).replace("above", f"{number} above") for number in range(400)]
        (folder / "a.jsonl").write_text("\n".join(lines) + "\n")
    shutil.copy(tmp_path / "data" / "chats" / "a.jsonl", tmp_path / "data" / "conversations.jsonl")
    assets = tmp_path / "assets"
    assets.mkdir()
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [
        {**tokenizer["added_tokens"][0], "id": 2048 + number, "content": mark}
        for number, mark in enumerate(MARKS)
    ]
    (assets / "tokenizer.json").write_text(json.dumps(tokenizer))
    (assets / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    chatml = shipped_recipes.PACKAGE / "assets" / "chat_templates" / "chatml.jinja"
    (assets / "chat_template.jinja").write_text(chatml.read_text())
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *TRAINED])
def test_it_trains_at_debug_size(name: str, place: Path) -> None:
    entry = shipped_recipes.get_shipped_recipe(name)
    run = resolve_recipe(str(entry.path), environment={}).run
    family = run.model.name
    if run.loss.teacher_path is not None:
        teacher = place / TEACHER_FOLDER
        Qwen3ForCausalLM(Qwen3Config(**SMALL_TEACHER)).save_pretrained(teacher)
        shutil.copy(place / "assets" / "tokenizer.json", teacher)
    overrides = [
        f"model={{name: {family}, flavor: debugmodel, {SIZES}, "
        "hf_assets_path: assets, attention: {mask: block_causal}}",
        "device=cpu",
        "dump_folder=run",
        "compile.enable=false",
        "checkpoint.initial_load_in_hf=false",
        "training.seq_len=512",
        "training.steps=2",
        "training.global_batch_size=2",
        "training.mixed_precision_param=float32",
        "training.dataloader.pin_memory=false",
        "parallelism.context_parallel_degree=1",
        "metrics.log_freq=1",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", str(entry.path), *overrides],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert "finished: 2 steps" in done.stderr


@pytest.mark.slow
def test_a_small_model_learns_to_chat_and_then_what_is_preferred(tmp_path: Path) -> None:
    recipe = shipped_recipes.get_shipped_recipe("first_preferences").path
    overrides = ["stages.chat.training.steps=4", "stages.preferences.training.steps=4"]
    overrides += ["stages.chat.lr_scheduler.warmup_steps=0"]
    overrides += ["stages.preferences.lr_scheduler.warmup_steps=0", "validation.enable=false"]
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", str(recipe), "dump_folder=both", *overrides],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both" / "preferences" / "checkpoint" / "step-4").is_dir()


@pytest.mark.slow
def test_adapters_over_weights_from_a_seed_chat_and_are_pushed(tmp_path: Path) -> None:
    def titanrun(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "titanrun", *words],
            input="Say: moon hand fire\n",
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    short = ("training.steps=3", "lr_scheduler.warmup_steps=0", "validation.enable=false")
    titanrun("train", "llama3_qlora_sft_debug", "dump_folder=runs/mine", *short)
    said = json.loads(titanrun("chat", "mine", "--max-new-tokens", "3"))
    assert (said["model"], said["tokens"]) == ("mine", 3)
    card = titanrun("push", "mine", "me/mine", "--dry-run")
    assert "model.safetensors" in card and "qlora" in card


@pytest.mark.parametrize("name", NAMES)
def test_what_it_needs_fits_into_its_gpus(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Qwen3Config(**TEACHER).save_pretrained(tmp_path / TEACHER_FOLDER)
    shutil.copy(TINY / "tokenizer.json", tmp_path / TEACHER_FOLDER)
    monkeypatch.chdir(tmp_path)
    entry = shipped_recipes.get_shipped_recipe(name)
    assert entry.header["run"] == "never"
    found = ONE_GPU.fullmatch(entry.header["devices"])
    ranks = "8" if found is None else "1"
    assert plan.run([str(entry.path), "--world-size", ranks, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    gigabytes = 80 if found is None else int(found[1])
    assert told["memory_total"] <= 0.95 * gigabytes * 10**9
    assert told["warnings"] == []
