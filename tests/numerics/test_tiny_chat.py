"""The fine-tuning recipe answers questions that it never saw, by transformers' own generation."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from titanrun.components.data.chat import TINY
from titanrun.components.tokenizers.config import TinyTokenizerConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_held_out_questions_are_answered_word_for_word(tmp_path: Path) -> None:
    recipe = str(ROOT / "recipes" / "llama3_sft_debug.yaml")
    overrides = [f"dump_folder={tmp_path / 'run'}", "checkpoint.last_save_in_hf=true", "checkpoint.last_save_model_only=true"]
    command = [sys.executable, "-m", "titanrun", "train", recipe, *overrides]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (folder,) = {file.parent for file in (tmp_path / "run" / "checkpoint").rglob("*.safetensors")}
    assert share_answered(folder) >= 0.95


def share_answered(folder: Path) -> float:
    """The share of held-out first questions whose greedy answer is the one in the data, letter for letter."""
    tokenizer = AutoTokenizer.from_pretrained(str(TinyTokenizerConfig().folder))
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    by_length: dict[int, list[tuple[list[int], str]]] = defaultdict(list)
    for line in (TINY / "held_out.jsonl").read_text().splitlines():
        question, answer = json.loads(line)["messages"][:2]
        ids = tokenizer.apply_chat_template([question], add_generation_prompt=True)["input_ids"]
        by_length[len(ids)].append((ids, answer["content"]))
    right = 0
    for length, asked in by_length.items():
        prompts = torch.tensor([ids for ids, _ in asked])
        said = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=16, do_sample=False, eos_token_id=2047, pad_token_id=2047
        )
        texts = tokenizer.batch_decode(said[:, length:], skip_special_tokens=True)
        right += sum(text.strip() == answer for text, (_, answer) in zip(texts, asked, strict=True))
    return right / sum(map(len, by_length.values()))
