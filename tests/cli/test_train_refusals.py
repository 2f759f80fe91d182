"""What `titanrun train` refuses before it writes anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "version: 1\nmodel: {name: llama3, flavor: debugmodel}\n"
TINY = "training: {dataset: tiny, seq_len: 64, steps: 4}\n"
CASES = {
    "missing file": (None, 2, "error[file]"),
    "empty file": ("", 2, "error[empty]"),
    "wrong type": (HEAD + "training: {dataset: tiny, seq_len: many}\n", 2, "error[wrong-type]"),
    "unknown key": (HEAD + TINY + "optimiser: adamw\n", 2, "error[unknown-key]"),
    "unknown name": (HEAD + TINY + "loss: mean_squared\n", 2, "error[unknown-name]"),
    "duplicate key": (HEAD + TINY + "version: 1\n", 2, "error[duplicate-key]"),
    "out of range": (HEAD + TINY + "optimizer: {lr: -1}\n", 2, "error[out-of-range]"),
    "missing data set": (
        HEAD + "training: {dataset: {name: text, path: no.jsonl}}\ntokenizer: tiny\n",
        3,
        "error[data/paths-exist]",
    ),
    "tokenizer too large": (
        HEAD.replace("debugmodel", "debugmodel, vocab_size: 100") + TINY,
        2,
        "error[conflict/tokenizer-fits-vocabulary]",
    ),
    "batches do not divide": (
        HEAD + TINY.replace("steps", "global_batch_size: 12, steps"),
        2,
        "error[conflict/batch-sizes-divide]",
    ),
    "warmup too long": (
        HEAD + TINY + "lr_scheduler: {warmup_steps: 9}\n",
        2,
        "error[conflict/warmup-within-run]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_problem_and_nothing_written(case: str, tmp_path: Path) -> None:
    text, code, label = CASES[case]
    if text is not None:
        (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "titanrun", "train", "recipe.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(label)
    assert done.stderr.count("error[") == 1
    assert "recipe.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_rank_that_is_not_the_first_leaves_resolving_to_it(tmp_path: Path) -> None:
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "1"}
    command = [sys.executable, "-m", "titanrun", "train", "no-such-recipe.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 2
    assert "rank 1 of 2 cannot reach the other ranks" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/nowhere", "recipe.yaml/inside"])
def test_a_folder_that_cannot_be_made_is_a_problem_of_the_file_system(
    folder: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(HEAD + TINY, encoding="utf-8")
    command = [sys.executable, "-m", "titanrun", "train", "recipe.yaml", f"dump_folder={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error[file]: cannot create the run directory")
