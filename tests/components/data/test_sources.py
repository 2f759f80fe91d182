"""What is read of the records in files: columns, formats, filters, limits, and what is done about
bad ones."""

import gzip
import hashlib
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather
import pytest

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.jsonl_reader import iter_file_lines
from titanrun.components.data.spec.data_files import SourceFile, is_file_unchanged
from titanrun.components.data.spec.file_columns import find_file_columns, iter_valid_json_records
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound

RECORDS: list[dict[str, Any]] = [
    {"title": "One", "body": "first text", "lang": "en", "score": 0.25},
    {"title": "Two, too", "body": 'second "text"', "lang": "de", "score": 0.5},
    {"title": "Three", "body": "third\ntext", "lang": "en", "score": 1},
]


def write_jsonl(path: Path, *records: object) -> Path:
    path.write_text(
        "".join(
            record if isinstance(record, str) else json.dumps(record) + "\n" for record in records
        ),
        encoding="utf-8",
    )
    return path


def ids_of(path: Path, tokenizer: Tokenizer, **options: Any) -> list[int]:
    config = TextDatasetConfig(path=str(path), **options)
    rows = build_text_dataset(
        config, tokenizer=tokenizer, sample_length=1, cache_folder=path.parent / "cache"
    )
    return [int(rows[index][0]) for index in range(len(rows))]


def expected(tokenizer: Tokenizer, *documents: str) -> list[int]:
    return [token for document in documents for token in tokenizer.encode(document)]


def problem_of(path: Path, tokenizer: Tokenizer, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        ids_of(path, tokenizer, **options)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.hint
    return problem


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "a.jsonl", *RECORDS)


def test_csv_and_both_kinds_of_arrow_hold_the_same_documents(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    bodies = [record["body"] for record in RECORDS]
    (tmp_path / "a.csv").write_text(
        'body,n\n"first text",1\n"second ""text""",2\n"third\ntext",3\n'
    )
    table = pa.table({"n": list(range(3)), "body": bodies})
    pyarrow.feather.write_feather(table, tmp_path / "b.arrow")
    datasets.Dataset(table).save_to_disk(tmp_path / "saved")
    (saved,) = (tmp_path / "saved").glob("*.arrow")
    for file in (tmp_path / "a.csv", tmp_path / "b.arrow", saved):
        assert ids_of(file, tokenizer, column="body") == expected(tokenizer, *bodies), file
        assert sorted(find_file_columns(file) or ()) == ["body", "n"], file


def test_a_format_puts_columns_together(records: Path, tokenizer: Tokenizer) -> None:
    texts = [f"{{{record['title']}}}\n{record['body']} ({record['score']})" for record in RECORDS]
    assert ids_of(records, tokenizer, format="{{{title}}}\n{body} ({score})") == expected(
        tokenizer, *texts
    )


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
def test_only_records_that_pass_every_filter_are_read(
    filters: list[Any], kept: list[int], records: Path, tokenizer: Tokenizer
) -> None:
    config = TextDatasetConfig.model_validate_json(json.dumps({"path": "x", "filters": filters}))
    texts = [RECORDS[number]["body"] for number in kept]
    assert ids_of(records, tokenizer, column="body", filters=config.filters) == expected(
        tokenizer, *texts
    )


def test_no_more_documents_are_read_than_wanted(records: Path, tokenizer: Tokenizer) -> None:
    config = TextDatasetConfig.model_validate_json(
        '{"path": "x", "filters": [{"column": "score", "at_least": 0.3}]}'
    )
    for most, kept in ((1, RECORDS[1:2]), (5, RECORDS[1:])):
        got = ids_of(records, tokenizer, column="body", filters=config.filters, max_documents=most)
        assert got == expected(tokenizer, *(record["body"] for record in kept))


def test_begin_and_end_tokens_are_as_wanted(records: Path, tokenizer: Tokenizer) -> None:
    whole = expected(tokenizer, *(record["body"] for record in RECORDS))
    assert ids_of(records, tokenizer, column="body", add_bos=False) == [
        token for token in whole if token != tokenizer.bos_id
    ]
    assert ids_of(records, tokenizer, column="body", add_eos=False) == [
        token for token in whole if token != tokenizer.eos_id
    ]


def test_bad_records_are_left_out_counted_and_told(
    tmp_path: Path, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    good = [{"text": f"document {number}"} for number in range(18)]
    file = write_jsonl(
        tmp_path / "a.jsonl", *good[:9], '{"text": "torn\n', {"text": None}, *good[9:]
    )
    assert "line 10 column" in problem_of(file, tokenizer).message
    with caplog.at_level(logging.WARNING):
        got = ids_of(file, tokenizer, bad_records="skip", max_bad_share=0.1)
    assert got == expected(tokenizer, *(record["text"] for record in good))
    assert f"skipped: '{file}' line 10 column" in caplog.text and "line 11 has null" in caplog.text
    caplog.clear()
    # what was left out is said again by a run that finds the data tokenised
    ids_of(file, tokenizer, bad_records="skip", max_bad_share=0.1)
    assert "2 records could not be read" in caplog.text
    # tokenized anew, and as it was with a larger share
    for options in ({"max_documents": 30}, {}):
        problem = problem_of(file, tokenizer, bad_records="skip", max_bad_share=0.09, **options)
        assert problem.path == ("max_bad_share",) and problem.message.startswith(
            "2 of 20 records cannot be read"
        )


@pytest.mark.parametrize(
    ("options", "path", "told"),
    [
        (
            {"column": "boddy"},
            ("column",),
            "has no column 'boddy'; it has: title, body, lang, score",
        ),
        ({"format": "{titel}"}, ("format",), "has no column 'titel'"),
        ({"column": "score"}, ("column",), "has float in column 'score', not text"),
        (
            {"column": "body", "filters": '[{"column": "long", "one_of": ["en"]}]'},
            ("filters", 0, "column"),
            "has no column 'long'",
        ),
        (
            {"column": "body", "filters": '[{"column": "lang", "at_least": 1}]'},
            ("filters", 0, "column"),
            "no number in column 'lang'",
        ),
        (
            {"column": "body", "filters": '[{"column": "lang", "one_of": ["fr"]}]'},
            ("filters",),
            "let none of the 3 documents",
        ),
    ],
)
def test_what_does_not_fit_the_columns_is_told(
    options: dict[str, Any], path: tuple[Any, ...], told: str, records: Path, tokenizer: Tokenizer
) -> None:
    filters = TextDatasetConfig.model_validate_json(
        f'{{"path": "x", "filters": {options.get("filters", "[]")}}}'
    ).filters
    problem = problem_of(records, tokenizer, **options | {"filters": filters})
    assert problem.path == path and told in problem.message


def test_a_torn_arrow_file_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pyarrow.feather.write_feather(pa.table({"text": ["a"] * 99}), tmp_path / "a.arrow")
    whole = (tmp_path / "a.arrow").read_bytes()
    for content in (b"", b"no arrow file", whole[:60]):
        (tmp_path / "a.arrow").write_bytes(content)
        assert "cannot be read as Arrow" in problem_of(tmp_path / "a.arrow", tokenizer).message
        assert find_file_columns(tmp_path / "a.arrow") is None


def test_json_holds_an_array_or_lines(tmp_path: Path, tokenizer: Tokenizer) -> None:
    whole = expected(tokenizer, *(record["body"] for record in RECORDS))
    file = tmp_path / "a.json"
    for indent, mark in ((None, ""), (2, "\ufeff\n")):
        file.write_text(mark + json.dumps(RECORDS, indent=indent), encoding="utf-8")
        assert ids_of(file, tokenizer, column="body") == whole
    write_jsonl(file, *RECORDS)
    assert ids_of(file, tokenizer, column="body") == whole
    file.write_text("[]")
    assert "holds no documents" in problem_of(file, tokenizer, column="body").message


def test_a_json_array_that_is_torn_or_holds_other_things_is_told(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    file = tmp_path / "a.json"
    file.write_text('[{"text": "one"},\n{"text": "two"\n')
    assert problem_of(file, tokenizer, bad_records="skip", max_bad_share=0.9).message.startswith(
        f"'{file}' line 3 column 1 is not JSON"
    )
    file.write_text('[{"text": "one"}, "two", {"text": null}]')
    assert problem_of(file, tokenizer).message == f"'{file}' record 2 is not a JSON object"
    assert ids_of(file, tokenizer, bad_records="skip", max_bad_share=0.9) == expected(
        tokenizer, "one"
    )


def packed_by(ending: str, content: bytes) -> bytes:
    """What a compressed file holds."""
    if ending == ".gz":
        return gzip.compress(content)
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


@pytest.mark.parametrize("ending", [".gz", ".ZST"])
def test_compressed_text_is_read_as_it_would_be_unpacked(
    ending: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    contents = {
        "a.jsonl": "".join(json.dumps(record) + "\r\n" for record in RECORDS),
        "b.json": json.dumps(RECORDS),
        "c.csv": "body,n\nfirst text,1\n",
        "d.txt": "\ufeffone\ntwo",
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8", newline="")
        (tmp_path / (name + ending)).write_bytes(packed_by(ending, content.encode()))
        plain = tmp_path / name
        assert ids_of(tmp_path / (name + ending), tokenizer, column="body") == ids_of(
            plain, tokenizer, column="body"
        ), name
        assert find_file_columns(tmp_path / (name + ending)) == find_file_columns(plain), name


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_damaged_compressed_file_is_told(
    ending: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    file = tmp_path / f"a.jsonl{ending}"
    # lines that do not compress, so that half of the file holds whole ones
    lines = "".join(
        json.dumps({"text": hashlib.sha512(bytes([number])).hexdigest()}) + "\n"
        for number in range(200)
    )
    whole = packed_by(ending, lines.encode())
    for content in (whole[: len(whole) // 2], b"", b"not compressed", whole[:-9] + b"somewhat!"):
        file.write_bytes(content)
        assert find_file_columns(file) in (None, ["text"])
        problem = problem_of(file, tokenizer, bad_records="skip")
        assert str(file) in problem.message, content[:20]


def test_what_the_datasets_library_notes_beside_its_data_is_no_data(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    datasets.Dataset(pa.table({"text": ["one", "two"]})).save_to_disk(tmp_path / "saved")
    assert ids_of(tmp_path / "saved", tokenizer) == expected(tokenizer, "one", "two")


def test_a_file_is_unchanged_by_its_size_and_by_a_time_that_is_reliable(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("four")
    status = path.stat()
    known = SourceFile(str(path), 4, status.st_mtime_ns, "")
    assert is_file_unchanged(known)
    assert is_file_unchanged(replace(known, mtime_ns=None))
    for change in (
        {"size": 5},
        {"mtime_ns": status.st_mtime_ns + 1},
        {"size": 5, "mtime_ns": None},
    ):
        assert not is_file_unchanged(replace(known, **change))
    path.unlink()
    assert not is_file_unchanged(known)


def test_columns_of_an_array_are_those_of_its_first_records(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('[{"a": 1}, {"a": 2, "b": 3}, 4, {"c": 5}]')
    assert list(iter_valid_json_records(file)) == [{"a": 1}, {"a": 2, "b": 3}]
    file.write_text('{"a": 1}\n{"b": 2}\n')
    assert list(iter_valid_json_records(file)) == [{"a": 1}, {"b": 2}]
    file.write_text("[]")
    assert list(iter_valid_json_records(file)) == []


def test_lines_are_those_of_the_datasets_library(tmp_path: Path) -> None:
    """Which splits at all three kinds of line ends, and at nothing else."""
    content = (
        "\ufeffone\r\ntwo\rthree\n\n\r\r\nfour\x0b\x0c\x1c\x85\u2028five\u00e9" + "x" * 100_000
    )
    for end in ("", "\n", "\r", "\r\n"):
        (tmp_path / "lines.txt").write_bytes((content + end).encode())
        library = datasets.Dataset.from_text(
            str(tmp_path / "lines.txt"),
            cache_dir=str(tmp_path / "cache"),
            streaming=True,
            keep_linebreaks=True,
            encoding="utf-8-sig",
        )
        expected = [row["text"] for row in library]
        assert list(iter_file_lines(tmp_path / "lines.txt")) == expected
        assert len(expected) == 7
