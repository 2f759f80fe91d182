"""The length of a sequence that `titanrun init` writes follows from the data."""

import json
from pathlib import Path

import pytest

from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.recipe.reference.finetuning_length import (
    UNKNOWN,
    SequenceLength,
    choose_sequence_length,
    fit_length,
)

TINY = TinyTokenizerConfig().folder


@pytest.mark.parametrize(
    ("lengths", "is_packed", "chosen"),
    [
        ([20, 43], False, 128),
        ([128], False, 128),
        ([20, 129], False, 256),
        # an outlier within twice the length of the others is held, another one is not
        ([100] * 99 + [256], False, 256),
        ([100] * 99 + [257], False, 128),
        ([100] * 94 + [257] * 6, False, 512),
        ([9000] * 100, False, 8192),
        # packed conversations share sequences
        ([20, 43], True, 2048),
        ([20, 3000], True, 4096),
    ],
)
def test_a_sequence_holds_the_documents(lengths: list[int], is_packed: bool, chosen: int) -> None:
    assert fit_length(lengths, is_packed=is_packed) == chosen


def write_pairs(folder: Path, amounts: list[int]) -> dict[str, str]:
    rows = [{"prompt": "Say", "chosen": "moon " * n, "rejected": "sun"} for n in amounts]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"name": "preference", "path": str(folder / "pairs.jsonl")}


def copy_model(folder: Path, context: int) -> Path:
    model = folder / "model"
    model.mkdir()
    for file in TINY.iterdir():
        if file.is_file():
            (model / file.name).write_bytes(file.read_bytes())
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": context}))
    return model


def choose(folder: Path, amounts: list[int], *, context: int = 4096) -> SequenceLength:
    settings, model = write_pairs(folder, amounts), copy_model(folder, context)
    return choose_sequence_length(settings, model, None)


def test_pairs_are_measured_with_both_replies(tmp_path: Path) -> None:
    short = choose(tmp_path, [1, 2])
    assert short.seq_len == 128
    assert short.reason.startswith("tokens; the longest of 2 pairs has ")
    longest = int(short.reason.rpartition(" ")[2])
    assert 10 < longest < 128


def test_the_context_of_the_model_is_never_exceeded(tmp_path: Path) -> None:
    found = choose(tmp_path, [1, 300, 300], context=96)
    assert found == SequenceLength(96, "tokens; 2 of 3 pairs are longer, left out")


def test_a_large_file_is_measured_by_its_first_records(tmp_path: Path) -> None:
    found = choose(tmp_path, [1] * 200 + [3000] * 100)
    assert found.seq_len == 128
    assert found.reason.startswith("tokens; the longest of the first 200 pairs has ")


@pytest.mark.parametrize(
    "settings", [{"name": "preference", "repo": "me/pairs"}, {"name": "preference", "path": "gone"}]
)
def test_other_data_gets_the_usual_length(settings: dict[str, str], tmp_path: Path) -> None:
    model = copy_model(tmp_path, 4096)
    assert choose_sequence_length(settings, model, None) == SequenceLength(2048, UNKNOWN)
