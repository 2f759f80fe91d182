"""Data that no sequence holds, or that has no records, is told with what to write."""

import json
from pathlib import Path

import pytest

from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}, max_seq_len: 256}
tokenizer: tiny
training: {dataset: {name: chat, path: data.jsonl}, seq_len: 16, epochs: 8}
validation: {holdout: 3}
"""
HOLDS, SEQ_64 = "set training.seq_len: 64, which holds the longest", ["training.seq_len=64"]
TEXTS = "training.dataset={name: text, path: data.jsonl}"
LABELS = ["loss=kto", "training.dataset={name: labelled, path: data.jsonl}"]


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)


def write(*lengths: int) -> None:
    """Write conversations whose replies have some words, and the same as labelled replies."""
    lines = []
    for number, length in enumerate(lengths):
        asked, reply = f"Say {number}", "moon " * length
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
        record = {"messages": turns, "prompt": asked, "completion": reply, "label": number % 2 == 0}
        lines.append(json.dumps(record))
    Path("data.jsonl").write_text("".join(f"{line}\n" for line in lines))


def find_problems(*overrides: str) -> list[Problem]:
    try:
        resolve_recipe("mine.yaml", list(overrides), environment={}, should_check_inputs=True)
    except ProblemsFound as found:
        return list(found.problems)
    return []


@pytest.mark.parametrize(
    ("lengths", "overrides", "hint", "change"),
    [
        ([20] * 16, [], HOLDS, SEQ_64),
        ([20] * 16, LABELS, HOLDS, SEQ_64),
        (
            [20] * 15 + [300],
            [],
            "set training.seq_len: 256, which holds 15 conversations",
            ["training.seq_len=256"],
        ),
        (
            [300] * 16,
            [],
            "the model reads 256 tokens: use shorter conversations, or too_long: cut",
            ["training.dataset.too_long=cut"],
        ),
        (
            [1] * 15 + [20],
            ["training.dataset.too_long=refuse"],
            "set training.seq_len: 64, which holds the longest, or too_long: drop or too_long: cut",
            ["training.seq_len=64"],
        ),
        (
            [1] * 15 + [300],
            ["training.dataset.too_long=refuse"],
            "set too_long: drop, and training.seq_len: 256, which holds 15 conversations",
            ["training.dataset.too_long=drop", "training.seq_len=256"],
        ),
    ],
)
def test_the_length_that_is_told_holds_the_records(
    lengths: list[int], overrides: list[str], hint: str, change: list[str]
) -> None:
    write(*lengths)
    [problem] = find_problems(*overrides)
    assert (problem.rule, problem.hint) == ("records-fit-a-sequence", hint)
    kept = [
        one for one in overrides if one.split("=")[0] not in [new.split("=")[0] for new in change]
    ]
    assert find_problems(*kept, *change) == []


def test_one_record_that_fits_is_enough() -> None:
    write(*([20] * 15), 1)
    assert find_problems("training.seq_len=32") == []


@pytest.mark.parametrize("text", ["", "\n\n"])
@pytest.mark.parametrize(
    "overrides",
    [[], ["validation.holdout=0.1"], [TEXTS]],
)
def test_an_empty_file_is_told(text: str, overrides: list[str]) -> None:
    Path("data.jsonl").write_text(text)
    [problem] = find_problems(*overrides)
    assert problem.rule == "files-have-records"
    assert problem.message == "'data.jsonl' holds no documents"
