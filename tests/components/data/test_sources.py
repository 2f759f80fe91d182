"""What is read of the records in files: columns, formats, filters, limits, and what is done about bad ones."""

import json
import logging
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather
import pytest

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.text import text_rows
from titanrun.components.tokenizers.tokenizer import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound

RECORDS: list[dict[str, Any]] = [
    {"title": "One", "body": "first text", "lang": "en", "score": 0.25},
    {"title": "Two, too", "body": 'second "text"', "lang": "de", "score": 0.5},
    {"title": "Three", "body": "third\ntext", "lang": "en", "score": 1},
]


def write_jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join(record if isinstance(record, str) else json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def ids_of(path: Path, tokenizer: Tokenizer, **options: Any) -> list[int]:
    config = TextDatasetConfig(path=str(path), **options)
    rows = text_rows(config, tokenizer=tokenizer, row_length=1, cache_folder=path.parent / "cache")
    return [int(rows[index][0]) for index in range(len(rows))]


def expected(tokenizer: Tokenizer, *documents: str) -> list[int]:
    return [id for document in documents for id in tokenizer.encode(document)]


def problem_of(path: Path, tokenizer: Tokenizer, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        ids_of(path, tokenizer, **options)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.help
    return problem


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", *RECORDS)


def test_csv_and_both_kinds_of_arrow_hold_the_same_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    bodies = [record["body"] for record in RECORDS]
    (tmp_path / "a.csv").write_text('body,n\n"first text",1\n"second ""text""",2\n"third\ntext",3\n')
    table = pa.table({"n": list(range(3)), "body": bodies})
    pyarrow.feather.write_feather(table, tmp_path / "b.arrow")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    (saved,) = (tmp_path / "saved").glob("*.arrow")
    for file in (tmp_path / "a.csv", tmp_path / "b.arrow", saved):
        assert ids_of(file, tokenizer, column="body") == expected(tokenizer, *bodies), file


def test_a_format_puts_columns_together(records: Path, tokenizer: Tokenizer) -> None:
    texts = [f"{{{record['title']}}}\n{record['body']} ({record['score']})" for record in RECORDS]
    assert ids_of(records, tokenizer, format="{{{title}}}\n{body} ({score})") == expected(tokenizer, *texts)


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ([{"column": "lang", "one_of": ["en", "fr"]}], [0, 2]),
        ([{"column": "score", "at_least": 0.5}], [1, 2]),
        ([{"column": "score", "at_most": 0.5}], [0, 1]),
        ([{"column": "title", "min_characters": 4}], [1, 2]),
        ([{"column": "title", "max_characters": 5}], [0, 2]),
        ([{"column": "score", "at_least": 0.5}, {"column": "lang", "one_of": ["en"]}], [2]),
    ],
)
def test_only_records_that_pass_every_filter_are_read(filters: list[Any], kept: list[int], records: Path, tokenizer: Tokenizer) -> None:
    config = TextDatasetConfig.model_validate_json(json.dumps({"path": "x", "filters": filters}))
    texts = [RECORDS[number]["body"] for number in kept]
    assert ids_of(records, tokenizer, column="body", filters=config.filters) == expected(tokenizer, *texts)


def test_no_more_documents_are_read_than_wanted(records: Path, tokenizer: Tokenizer) -> None:
    config = TextDatasetConfig.model_validate_json('{"path": "x", "filters": [{"column": "score", "at_least": 0.3}]}')
    for most, kept in ((1, RECORDS[1:2]), (5, RECORDS[1:])):
        got = ids_of(records, tokenizer, column="body", filters=config.filters, max_documents=most)
        assert got == expected(tokenizer, *(record["body"] for record in kept))


def test_begin_and_end_tokens_are_as_wanted(records: Path, tokenizer: Tokenizer) -> None:
    whole = expected(tokenizer, *(record["body"] for record in RECORDS))
    assert ids_of(records, tokenizer, column="body", add_bos=False) == [id for id in whole if id != tokenizer.bos_id]
    assert ids_of(records, tokenizer, column="body", add_eos=False) == [id for id in whole if id != tokenizer.eos_id]


def test_bad_records_are_left_out_counted_and_told(tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    good = [{"text": f"document {number}"} for number in range(18)]
    file = write_jsonl(tmp_path / "a.jsonl", *good[:9], '{"text": "torn\n', {"text": None}, *good[9:])
    assert "line 10 column" in problem_of(file, tokenizer).message
    with caplog.at_level(logging.WARNING):
        got = ids_of(file, tokenizer, bad_records="skip", max_bad_share=0.1)
    assert got == expected(tokenizer, *(record["text"] for record in good))
    assert f"left out: '{file}' line 10 column" in caplog.text and "line 11 has null" in caplog.text
    caplog.clear()
    # what was left out is said again by a run that finds the data tokenised
    ids_of(file, tokenizer, bad_records="skip", max_bad_share=0.1)
    assert "2 records could not be read" in caplog.text
    problem = problem_of(file, tokenizer, bad_records="skip", max_bad_share=0.09, max_documents=30)
    assert problem.path == ("max_bad_share",) and problem.message.startswith("2 of 20 records cannot be read")


@pytest.mark.parametrize(
    ("options", "path", "told"),
    [
        ({"column": "boddy"}, ("column",), "has no column 'boddy'; it has: title, body, lang, score"),
        ({"format": "{titel}"}, ("format",), "has no column 'titel'"),
        ({"column": "score"}, ("column",), "has float in column 'score', not text"),
        ({"column": "body", "filters": '[{"column": "long", "one_of": ["en"]}]'}, ("filters", 0, "column"), "has no column 'long'"),
        ({"column": "body", "filters": '[{"column": "lang", "at_least": 1}]'}, ("filters", 0, "column"), "no number in column 'lang'"),
        ({"column": "body", "filters": '[{"column": "lang", "one_of": ["fr"]}]'}, ("filters",), "let none of the 3 documents"),
    ],
)
def test_what_does_not_fit_the_columns_is_told(
    options: dict[str, Any], path: tuple[Any, ...], told: str, records: Path, tokenizer: Tokenizer
) -> None:
    filters = TextDatasetConfig.model_validate_json(f'{{"path": "x", "filters": {options.get("filters", "[]")}}}').filters
    problem = problem_of(records, tokenizer, **options | {"filters": filters})
    assert problem.path == path and told in problem.message


def test_a_torn_arrow_file_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pyarrow.feather.write_feather(pa.table({"text": ["a"] * 99}), tmp_path / "a.arrow")
    whole = (tmp_path / "a.arrow").read_bytes()
    for content in (b"", b"no arrow file", whole[:60]):
        (tmp_path / "a.arrow").write_bytes(content)
        assert "cannot be read as Arrow" in problem_of(tmp_path / "a.arrow", tokenizer).message
