"""Preferences after fine-tuning: the reference is the model that the first run trained."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.model_hub import write_model

STEPS = ("training.steps=3", "lr_scheduler.warmup_steps=0", "optimizer.lr=1e-2")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_adapters_are_merged_and_become_the_reference(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    chats = [{"prompt": f"{number} Say moon", "completion": "moon"} for number in range(64)]
    pairs = [
        {"prompt": f"{number} Say moon", "chosen": "moon", "rejected": "sun"}
        for number in range(64)
    ]
    for name, records in (("chats", chats), ("pairs", pairs)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text)

    def titanrun(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "titanrun", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "160"},
        )
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done.stderr

    def write(kind: str, model: str, data: str, file: str) -> None:
        titanrun("init", "--kind", kind, "--model", model, "--data", data, "-o", file)

    write("lora", "model", "chats.jsonl", "sft.yaml")
    titanrun("train", "sft.yaml", *STEPS, "dump_folder=runs/sft")
    write("dpo", "model", "pairs.jsonl", "wrong.yaml")
    started = ("checkpoint.initial_load_path=runs/sft", "checkpoint.initial_load_in_hf=false")
    told = titanrun("train", "wrong.yaml", *started, "converters=[lora]", *STEPS, code=2)
    assert "the reference would be the base model of 'runs/sft'" in told
    titanrun("checkpoint", "export", "runs/sft", "models/sft", "--format", "hf", "--merge")
    write("dpo", "models/sft", "pairs.jsonl", "dpo.yaml")
    titanrun("train", "dpo.yaml", *STEPS, "dump_folder=runs/dpo")
    first = json.loads((tmp_path / "runs/dpo/metrics.jsonl").read_text().splitlines()[0])
    # policy and reference are equal before the first step
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert first["dpo/margin"] == pytest.approx(0, abs=1e-5)
