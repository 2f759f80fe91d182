"""Records of a stream's files, against the readers of indexes, from the beginning and any place."""

import csv
import gzip
import json
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.lane_streams import Ranks, lane_texts, numbers_in, write_numbered
from titanrun.components.data import lane_records, line_reader
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.lane_records import RawRecord, RecordFile
from titanrun.components.data.lane_windows import LaneSettings, WindowReader, WindowStart
from titanrun.components.data.local_stream_files import LocalStreamFiles, plan_local_files
from titanrun.components.data.record_readers import Record, iter_records
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound

TEXTS = [f"text {number} naïve ☕ {'long ' * (number % 40)}" for number in range(3000)]
RECORDS = [{"text": text, "number": number} for number, text in enumerate(TEXTS)]
LINES = [json.dumps(record, ensure_ascii=number % 2 == 0) for number, record in enumerate(RECORDS)]


def write_csv(file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\r\n")
        writer.writerow(["text", "number"])
        for number, text in enumerate(TEXTS):
            writer.writerow([f'{text}\nsecond "line", {number}\r\nthird', number])


def write_zst(file: Path) -> None:
    # two frames
    with file.open("wb") as opened:
        for half in (LINES[:1000], LINES[1000:]):
            opened.write(pa.compress("\n".join([*half, ""]).encode(), codec="zstd", asbytes=True))


def write_arrow(file: Path, *, stream: bool) -> None:
    table = pa.Table.from_pylist(RECORDS)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1300)


def write_arrow_of_words(file: Path) -> None:
    # a stream has the words of a dictionary before its first batch
    table = pa.Table.from_pylist(RECORDS)
    table = table.set_column(0, "text", table["text"].dictionary_encode())
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1300)


WRITERS: dict[str, Callable[[Path], object]] = {
    "plain.jsonl": lambda file: file.write_text("\n\n".join(LINES) + "\n"),
    "crlf.jsonl": lambda file: file.write_bytes("\r\n".join(LINES).encode()),
    "cr.jsonl": lambda file: file.write_bytes("\r".join(LINES).encode()),
    "mark.jsonl": lambda file: file.write_text("\n".join(LINES), encoding="utf-8-sig"),
    "lines.json": lambda file: file.write_text("\n".join(LINES)),
    "array.json": lambda file: file.write_text(json.dumps(RECORDS)),
    "members.jsonl.gz": lambda file: file.write_bytes(
        gzip.compress("\n".join([*LINES[:1000], ""]).encode())
        + gzip.compress("\n".join(LINES[1000:]).encode())
    ),
    "array.json.gz": lambda file: file.write_bytes(gzip.compress(json.dumps(RECORDS).encode())),
    "frames.jsonl.zst": write_zst,
    "rows.csv": write_csv,
    "rows.parquet": lambda file: pq.write_table(
        pa.Table.from_pylist(RECORDS), file, row_group_size=1100
    ),
    "feather.arrow": lambda file: write_arrow(file, stream=False),
    "stream.arrow": lambda file: write_arrow(file, stream=True),
    "words.arrow": write_arrow_of_words,
    "alone.txt": lambda file: file.write_bytes("one\r\ntwo\rthree ☕\n".encode()),
}


def parse_all(file: RecordFile, start: int = 0, offset: int = 0) -> list[tuple[RawRecord, Record]]:
    return [(raw, file.parse(raw)[1]) for raw in file.iter_from(start, offset)]


@pytest.mark.parametrize("name", WRITERS)
def test_a_stream_reads_what_an_index_reads_from_any_record_on(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    WRITERS[name](file)
    (planned,) = plan_local_files(str(file)).files
    source = RecordFile(LocalStreamFiles(), planned)
    found = parse_all(source)
    if name.endswith(".txt"):
        assert [record for _, record in found] == [{"text": "one\ntwo\nthree ☕\n"}]
        return
    expected = [record for _, record in iter_records([file])]
    assert [record for _, record in found] == expected and len(expected) == len(TEXTS)
    assert [raw.number for raw, _ in found] == list(range(len(found)))
    for start in (1, 999, 1000, 1024, 1100, 2999):
        before = found[start - 1][0]
        rest = parse_all(source, start, before.end)
        assert [record for _, record in rest] == expected[start:]
        assert [raw[:3] for raw, _ in rest] == [raw[:3] for raw, _ in found[start:]]


def test_only_required_columns_are_read(tmp_path: Path) -> None:
    for name in ("rows.parquet", "stream.arrow", "feather.arrow"):
        WRITERS[name](tmp_path / name)
        (planned,) = plan_local_files(str(tmp_path / name)).files
        source = RecordFile(LocalStreamFiles(), planned, {"number": ("column",)})
        assert [record for _, record in parse_all(source)][:2] == [{"number": 0}, {"number": 1}]
        missing = RecordFile(LocalStreamFiles(), planned, {"body": ("column",)})
        with pytest.raises(ProblemsFound, match="has no column 'body'; it has: text, number"):
            parse_all(missing)


@pytest.mark.parametrize("name", ["members.jsonl.gz", "frames.jsonl.zst", "rows.parquet"])
def test_a_damaged_file_is_told_with_its_record(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    WRITERS[name](file)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) * 2 // 3])
    (planned,) = plan_local_files(str(file)).files
    with pytest.raises(ProblemsFound, match=rf"{name}' record \d+ cannot be read: the file is dam"):
        parse_all(RecordFile(LocalStreamFiles(), planned))


def test_lines_that_are_not_utf8_and_rows_of_another_width_name_their_record(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    (tmp_path / "b.csv").write_text("text,number\na,1\nb\n")
    (tmp_path / "c.csv").write_text('text,number\na,1\nb,"2\n')
    told = {
        "a.jsonl": "a.jsonl' record 2 is not UTF-8",
        "b.csv": "b.csv' record 2 does not have the 2 values that the header names",
        "c.csv": "c.csv' record 2 is not CSV: unexpected end of data",
    }
    for name, message in told.items():
        (planned,) = plan_local_files(str(tmp_path / name)).files
        with pytest.raises(ProblemsFound, match=message):
            parse_all(RecordFile(LocalStreamFiles(), planned))


@pytest.mark.parametrize("name", ["plain.jsonl", "members.jsonl.gz", "rows.csv", "rows.parquet"])
def test_a_file_is_read_as_large_as_it_was_when_it_was_opened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_reader, "BLOCK_BYTES", 2000)
    # since Python 3.12, 128 KiB: the whole file
    monkeypatch.setattr(gzip, "READ_BUFFER_SIZE", 2000, raising=False)
    file = tmp_path / name
    WRITERS[name](file)
    content = file.read_bytes()
    (planned,) = plan_local_files(str(file)).files
    source = RecordFile(LocalStreamFiles(), planned)
    records = source.iter_from(0, 0)
    found = list(islice(records, 5))
    with file.open("ab") as opened:
        opened.write(content)
    assert [raw.number for raw in [*found, *records]] == list(range(len(TEXTS)))
    file.write_bytes(content)
    records = source.iter_from(0, 0)
    next(records)
    os.truncate(file, len(content) // 2)
    with pytest.raises(ProblemsFound, match=f"{name}' cannot be read: it ends after") as told:
        list(records)
    assert told.value.problems[0].rule == "source-changed"


def test_a_value_of_a_csv_file_may_be_a_long_document(tmp_path: Path) -> None:
    file = tmp_path / "long.csv"
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["text"], ["short"], ["word " * 100_000], ["end"]])
    limit = csv.field_size_limit(2**17)
    try:
        (planned,) = plan_local_files(str(file)).files
        found = [record for _, record in parse_all(RecordFile(LocalStreamFiles(), planned))]
        csv.field_size_limit(2**17)
        assert [record for _, record in iter_records([file])] == found
    finally:
        csv.field_size_limit(limit)
    assert [len(str(record["text"])) for record in found] == [5, 500_000, 3]


def test_a_file_that_is_read_whole_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_records, "MAX_WHOLE_FILE_BYTES", 2**20)
    for name, content in {"a.json": f'["{"x" * 2**20}"]', "b.txt": "lines\n" * 2**18}.items():
        (tmp_path / name).write_text(content)
        (planned,) = plan_local_files(str(tmp_path / name)).files
        with pytest.raises(ProblemsFound, match="is larger than 1 MiB, but a stream reads such"):
            parse_all(RecordFile(LocalStreamFiles(), planned))


def test_large_records_end_a_window(tmp_path: Path) -> None:
    lines = [json.dumps({"text": str(number) * 3 * 2**20}) for number in range(10)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    plan = plan_local_files(str(tmp_path))

    def sizes(lane: int, start: WindowStart) -> list[int]:
        settings = LaneSettings(lane=lane, num_lanes=2, seed=None, repeats=False, window=256)
        windows = WindowReader(plan, LocalStreamFiles(), settings).iter_windows(start)
        return [len(window.records) for window in windows]

    # 16 MiB are reached with the sixth record; the file is striped over both lanes
    assert sizes(0, WindowStart()) == [6] and sizes(1, WindowStart()) == [4]


def test_text_files_and_names_of_their_column(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for number in range(24):
        (tmp_path / f"{number:02}.txt").write_text(f"<{number}>" * 3)
    for options in ({}, {"column": "content"}, {"format": "{text}"}):
        config = TextDatasetConfig(
            path=str(tmp_path), streaming=True, repeat=False, packing=None, **options
        )
        texts = lane_texts(Ranks(config, tokenizer).rest(), tokenizer, 4)
        assert sorted(set(numbers_in("".join(texts)))) == list(range(24))


@pytest.mark.parametrize("name", ["part-001.jsonl", "part-001.jsonl.gz", "part-001.csv"])
def test_a_file_of_a_byte_order_mark_holds_nothing(
    name: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """As some programs write a table without rows. It was an error of Python."""
    mark = line_reader.BYTE_ORDER_MARK
    (tmp_path / name).write_bytes(gzip.compress(mark) if name.endswith(".gz") else mark)
    write_numbered(tmp_path, [20], suffix=".jsonl")
    config = TextDatasetConfig(path=str(tmp_path), streaming=True, repeat=False)
    if name.endswith(".csv"):
        with pytest.raises(ProblemsFound, match="has no column 'text'"):
            Ranks(config, tokenizer, lanes=1).rest()
        return
    texts = lane_texts(Ranks(config, tokenizer, lanes=1).rest(), tokenizer, 1)
    assert sorted(numbers_in(texts[0])) == list(range(20))


def test_a_document_longer_than_a_chunk_is_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_numbered(tmp_path, [40] * 4, suffix=".jsonl")
    long = "words and lines\n" * 100_000
    for number in range(4):
        with (tmp_path / f"part-{number:03}.jsonl").open("a") as file:
            file.write(json.dumps({"text": long + str(number)}))
    config = TextDatasetConfig(path=str(tmp_path), streaming=True, repeat=False)
    texts = lane_texts(Ranks(config, tokenizer, length=10_001).rest(), tokenizer, 4)
    assert sum(long in text for text in texts) == 4
