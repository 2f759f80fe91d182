"""Validation on streams reads as much as it needs, in order, once for all."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.components.data.lane_streams import numbers_in, write_numbered
from titanrun.components.data import lane_records, stream_head
from titanrun.components.data.config import (
    MixtureDatasetConfig,
    MixtureSource,
    TextDatasetConfig,
)
from titanrun.components.data.document_split import Holdout
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_head import build_stream_head
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound


def text_of(rows: IndexedDataset, tokenizer: Tokenizer) -> str:
    return "".join(
        tokenizer.decode((row if row.ndim == 1 else row[0][row[0] > 0]).tolist())
        for row in (rows[number] for number in range(len(rows)))
    )


def head(folder: Path, tokenizer: Tokenizer, rows: int | None, **options: Any) -> IndexedDataset:
    holdout = options.pop("holdout", None)
    config = TextDatasetConfig(path=str(folder / "texts"), streaming=True, **options)
    return build_stream_head(
        config,
        tokenizer=tokenizer,
        sample_length=65,
        cache_folder=folder / "cache",
        rows=rows,
        holdout=holdout,
        retries=RetryPolicy(900),
    )


@pytest.mark.parametrize("packing", ["windows", "documents", "best_fit", None])
def test_the_first_rows_are_those_of_an_index_and_no_more_files_are_read(
    packing: str | None, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_numbered(tmp_path / "texts", [900] * 3)
    opened = []
    monkeypatch.setattr(
        lane_records.RecordFile,
        "parse",
        lambda self, raw, parse=lane_records.RecordFile.parse: (
            opened.append(self.file.name),
            parse(self, raw),
        )[1],
    )
    rows = head(tmp_path, tokenizer, 40, packing=packing)
    assert len(rows) >= 40
    assert set(opened) == {"part-000.jsonl.gz"} and len(opened) < 900
    index = build_text_dataset(
        TextDatasetConfig(path=str(tmp_path / "texts"), packing=packing),
        tokenizer=tokenizer,
        sample_length=65,
        cache_folder=tmp_path / "cache",
    )
    if packing != "best_fit":
        assert all(np.array_equal(rows[number], index[number]) for number in range(40))
    # tokenized once
    count = len(opened)
    assert np.array_equal(head(tmp_path, tokenizer, 40, packing=packing)[3], rows[3])
    assert len(opened) == count
    assert len(head(tmp_path, tokenizer, None, packing=packing)) == len(index)


def test_held_out_documents_of_a_stream_are_found_in_order(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    total = write_numbered(tmp_path / "texts", [200] * 5)
    found = []
    for rows in (10, None):
        sides = [
            numbers_in(
                text_of(
                    head(
                        tmp_path,
                        tokenizer,
                        rows,
                        packing=None,
                        holdout=Holdout(0.1, is_validation=is_validation),
                    ),
                    tokenizer,
                )
            )
            for is_validation in (True, False)
        ]
        found.append(sides)
    assert found[0][0] == found[1][0][:10] == sorted(found[0][0])
    assert sorted(found[1][0] + found[1][1]) == list(range(total))
    with pytest.raises(ProblemsFound, match="is held out by validation"):
        head(tmp_path, tokenizer, 10, holdout=Holdout(1e-9, is_validation=True))


def test_held_out_documents_of_a_stream_that_fill_no_sequence_are_told_as_held_out(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path / "texts", [2])
    with pytest.raises(ProblemsFound) as found:
        head(tmp_path, tokenizer, 10, holdout=Holdout(0.99, is_validation=True))
    (problem,) = found.value.problems
    assert "that validation.holdout 0.99 holds out have" in problem.message
    assert problem.path == ("holdout",)
    assert problem.hint is not None and problem.hint.startswith("set a larger validation.holdout")


def test_the_search_for_held_out_documents_says_how_far_it_is(
    tmp_path: Path,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Millions of records may be read before the first step."""
    assert stream_head.PROGRESS_RECORDS == 100_000
    monkeypatch.setattr(stream_head, "PROGRESS_RECORDS", 100)
    write_numbered(tmp_path / "texts", [60, 190, 70])
    with caplog.at_level("INFO", logger=stream_head.log.name):
        head(tmp_path, tokenizer, None, holdout=Holdout(0.1, is_validation=True))
    told = [line for line in caplog.messages if "for validation" in line]
    name = str(tmp_path / "texts")
    assert told == [f"{name}: {count} records read for validation" for count in (100, 200, 300)]


def test_a_mixture_with_streams_is_validated_on_the_head_of_each(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    following = write_numbered(tmp_path / "one", [100] * 4)
    write_numbered(tmp_path / "two", [100], suffix=".jsonl", first=following)
    config = MixtureDatasetConfig(
        sources=(
            MixtureSource(
                dataset=TextDatasetConfig(
                    path=str(tmp_path / "one"), streaming=True, packing="best_fit"
                ),
                weight=0.9,
            ),
            MixtureSource(
                dataset=TextDatasetConfig(path=str(tmp_path / "two"), packing="best_fit"),
                weight=0.1,
            ),
        )
    )
    rows = build_stream_head(
        config,
        tokenizer=tokenizer,
        sample_length=65,
        cache_folder=tmp_path / "cache",
        rows=20,
        holdout=Holdout(0.2, is_validation=True),
        retries=RetryPolicy(900),
    )
    numbers = numbers_in(text_of(rows, tokenizer))
    assert 20 <= len([number for number in numbers if number < following]) < 80
    assert 10 < len([number for number in numbers if number >= following]) < 30


def test_bad_records_before_the_end_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "texts").mkdir()
    lines = [json.dumps({"text": "words " * 20}) for _ in range(50)]
    lines[3] = "torn"
    (tmp_path / "texts" / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ProblemsFound, match="record 4 column 1 is not JSON"):
        head(tmp_path, tokenizer, 10)
    assert len(head(tmp_path, tokenizer, 10, bad_records="skip")) >= 10


def test_too_many_bad_records_before_the_end_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    lines = [json.dumps({"text": "words " * 20}) for _ in range(50)]
    lines[3] = lines[5] = "torn"
    (tmp_path / "texts" / "a.jsonl").write_text("\n".join(lines))
    # as in a lane, few records say nothing about the share
    monkeypatch.setattr(stream_head, "BAD_SHARE_RECORDS", 100)
    assert len(head(tmp_path, tokenizer, 10, bad_records="skip", max_bad_share=0.02)) >= 10
    monkeypatch.setattr(stream_head, "BAD_SHARE_RECORDS", 20)
    with pytest.raises(ProblemsFound, match=r"2 of \d+ records cannot be read, more than") as found:
        head(tmp_path, tokenizer, 9, bad_records="skip", max_bad_share=0.02)
    assert found.value.problems[0].path == ("max_bad_share",)
