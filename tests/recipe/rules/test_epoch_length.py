"""Epochs that have fewer sequences than one step, counted before a run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from titanrun.components.data.chat_config import ChatDatasetConfig
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.replies_config import RepliesConfig
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rules.epoch_length import count_training_sequences

WORDS = ("moon", "sun and stars", "a long reply " * 9)
TURNS = [
    [
        {"role": "user", "content": f"{number} Say {WORDS[number % 3]}"},
        {"role": "assistant", "content": WORDS[number % 3]},
    ]
    for number in range(60)
]
PAIRS = [
    {"prompt": turn[0]["content"], "chosen": turn[1]["content"], "rejected": "no"} for turn in TURNS
]
LABELS = [
    {"prompt": pair["prompt"], "completion": pair["chosen"], "label": str(number % 2 == 0).lower()}
    for number, pair in enumerate(PAIRS)
]
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "packed": (
        {"name": "chat", "packing": "best_fit"},
        [{"messages": turn} for turn in TURNS],
    ),
    "cut": (
        {"name": "chat", "packing": "best_fit", "too_long": "cut"},
        [{"messages": turn} for turn in TURNS],
    ),
    "one each": ({"name": "chat"}, [{"messages": turn} for turn in TURNS]),
    "prompt": (
        {"name": "chat", "layout": "prompt_completion", "completion_column": "chosen"},
        PAIRS,
    ),
    "pairs": ({"name": "preference"}, PAIRS),
    "labels": ({"name": "labelled"}, LABELS),
    "labels of pairs": ({"name": "labelled", "from_pairs": True}, PAIRS),
}
HEAD = """version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
"""


def write(place: Path, case: str, suffix: str) -> Recipe:
    dataset, records = CASES[case]
    path = place / f"data.{suffix}"
    if suffix == "jsonl":
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    else:
        getattr(Dataset.from_list(records), f"to_{suffix}")(path)
    loss = {"preference": "dpo", "labelled": "kto"}.get(dataset["name"], "cross_entropy")
    training = {"dataset": {**dataset, "path": str(path)}, "seq_len": 64, "epochs": 1}
    training |= {"local_batch_size": 1, "global_batch_size": 2}
    recipe = place / "recipe.yaml"
    recipe.write_text(f"{HEAD}loss: {loss}\ntraining: {json.dumps(training)}\n")
    resolved = resolve_recipe(
        str(recipe), ["validation.holdout=0.2", "training.global_batch_size=2"], environment={}
    )
    return resolved.run


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("case", CASES)
def test_the_count_is_that_of_the_run(case: str, suffix: str, tmp_path: Path) -> None:
    run = write(tmp_path, case, suffix)
    dataset = run.training.dataset
    assert isinstance(dataset, ChatDatasetConfig | RepliesConfig) and dataset.path is not None
    rows = dataset.load_builder()(
        dataset,
        tokenizer=run.tokenizer.load_builder()(run.tokenizer),
        sample_length=65,
        cache_folder=tmp_path / "cache",
        holdout=Holdout(0.2, None, is_validation=False),
    )
    counted = count_training_sequences(dataset, run.tokenizer, sample_length=65, holdout=0.2)
    assert counted == len(rows) and 5 < counted < 120


def test_an_epoch_without_a_global_batch_is_a_problem_before_the_run(tmp_path: Path) -> None:
    write(tmp_path, "packed", "jsonl")
    short = ["validation.holdout=2", "training.seq_len=2048", "training.global_batch_size=16"]
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(
            str(tmp_path / "recipe.yaml"), short, environment={}, should_check_inputs=True
        )
    (problem,) = found.value.problems
    assert problem.rule == "epochs-fill-a-step"
    assert problem.message == "1 epoch has 2 sequences, but training.global_batch_size is 16"
    assert problem.hint is not None and "training.epochs to 8 for 1 step" in problem.hint


def test_counting_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path, "pairs", "jsonl")
    words = ["validate", "recipe.yaml", "--level", "environment"]
    code = (
        "import sys\nfrom titanrun.cli.main import run_and_flush\n"
        f"code = run_and_flush({[*words, 'training.global_batch_size=512']})\n"
        "assert code == 3, code\nassert not {'torch', 'datasets'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "1 epoch has 40 sequences" in done.stderr


@pytest.mark.parametrize(
    "overrides",
    [["training.epochs=null", "training.steps=3"], ["training.global_batch_size=1"]],
)
def test_a_run_that_trains_is_no_problem(overrides: list[str], tmp_path: Path) -> None:
    write(tmp_path, "packed", "jsonl")
    kept = ["validation.holdout=2", "training.seq_len=2048", *overrides]
    assert not resolve_recipe(
        str(tmp_path / "recipe.yaml"), kept, environment={}, should_check_inputs=True
    ).warnings


@pytest.mark.parametrize("case", ["pairs", "labels"])
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_share_that_holds_out_no_pair_is_a_problem_before_the_run(
    case: str, suffix: str, tmp_path: Path
) -> None:
    write(tmp_path, case, suffix)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(
            str(tmp_path / "recipe.yaml"),
            ["validation.holdout=0.001"],
            environment={},
            should_check_inputs=True,
        )
    (problem,) = found.value.problems
    assert problem.rule == "holdout-fills-both-sides" and "0 of the 60 " in problem.message
    assert problem.hint is not None and "set validation.holdout: 2 " in problem.hint


def test_records_with_one_prompt_cannot_be_split(tmp_path: Path) -> None:
    write(tmp_path, "pairs", "jsonl")
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(PAIRS[0])}\n" * 9)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(
            str(tmp_path / "recipe.yaml"),
            ["validation.holdout=3"],
            environment={},
            should_check_inputs=True,
        )
    (problem,) = found.value.problems
    assert problem.hint is not None and "all are equal" in problem.hint
