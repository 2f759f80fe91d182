"""Texts and tokens that datatrove wrote, by the pipeline of the data page.

TITANRUN_DATATROVE_PYTHON is a Python with datatrove; make test-datatrove installs one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from titanrun.components.data.token_records import find_document_boundaries
from titanrun.components.data.tokenized_documents import open_tokenized_documents

pytestmark = pytest.mark.datatrove

ROOT = Path(__file__).parents[2]
PIPELINE = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "data.md").read_text(encoding="utf-8"), re.S | re.M
)
TEXTS = [f"document {number} " + "word " * (number % 17) for number in range(50)]
RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: DATASET
  seq_len: 32
  local_batch_size: 2
  steps: 5
metrics: {log_freq: 1}
lr_scheduler: {warmup_steps: 1}
checkpoint: {enable: false}
"""
FROM_TEXTS = "{name: text, path: filtered, add_bos: false, shuffle: false}"
FROM_TOKENS = "{name: tokens, layout: datatrove, path: tokenized, shuffle: false}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which the pipeline has run."""
    (tmp_path / "pages").mkdir()
    for file in (0, 1):
        lines = [json.dumps({"text": text, "id": text}) for text in TEXTS[file::2]]
        (tmp_path / "pages" / f"{file}.jsonl").write_text("\n".join(lines))
    shutil.copy(ROOT / "titanrun" / "assets" / "tiny" / "tokenizer.json", tmp_path)
    (code,) = (block for block in PIPELINE if "datatrove" in block)
    (tmp_path / "pipeline.py").write_text(code)
    python = os.environ["TITANRUN_DATATROVE_PYTHON"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    subprocess.run([python, "pipeline.py"], cwd=tmp_path, env=environment, check=True, timeout=120)
    return tmp_path


def run(folder: Path, *arguments: str) -> None:
    line = [sys.executable, "-m", "titanrun", *arguments, "-q"]
    subprocess.run(line, cwd=folder, check=True, timeout=120)


def train(folder: Path, name: str, dataset: str) -> list[float]:
    (folder / f"{name}.yaml").write_text(RECIPE.replace("DATASET", dataset))
    run(folder, "train", f"{name}.yaml", f"dump_folder={name}", "training.data_cache=cache")
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [entry["loss"] for entry in entries if "loss" in entry]


def test_texts_and_tokens_of_a_pipeline_train_the_same(folder: Path) -> None:
    kept = [text for file in (0, 1) for text in TEXTS[file::2] if len(text) >= 40]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end_of_text|>")
    expected = [[*tokenizer.encode(text).ids, end] for text in kept]
    documents = open_tokenized_documents(str(folder / "tokenized"), "datatrove")
    starts, lengths = find_document_boundaries(documents.tokens)
    found = [
        documents.ids[start : start + length].tolist()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    assert found == expected and 20 < len(found) < len(TEXTS)

    (folder / "build.yaml").write_text(RECIPE.replace("DATASET", FROM_TEXTS))
    for part in ("2/2", "1/2"):
        run(folder, "data", "build", "build.yaml", "training.data_cache=cache", "--part", part)
    run(folder, "data", "build", "build.yaml", "training.data_cache=cache", "--finish")
    units = [np.load(file) for file in sorted((folder / "cache" / "units").glob("*.npy"))]
    assert sorted(map(len, units)) == sorted(
        sum(map(len, expected[start:stop])) for start, stop in split_by_task(kept)
    )

    losses = train(folder, "texts", FROM_TEXTS)
    assert len(losses) == 5 and losses == train(folder, "tokens", FROM_TOKENS)
    assert not list((folder / "cache").glob("*.npy"))


def split_by_task(kept: list[str]) -> list[tuple[int, int]]:
    """Return the documents of each of the two tasks of the pipeline."""
    first = sum(len(text) >= 40 for text in TEXTS[0::2])
    return [(0, first), (first, len(kept))]
