"""Files whose records cannot be read are found before a run."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from titanrun.components.data.spec.json_lines import check_first_and_last_record
from titanrun.config.problems import ProblemsFound

ROW = '{"text": "a"}\n'


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", "this is not JSON\n", "line 1 column 1 is not JSON"),
        ("a.jsonl", ROW + '{"text": "b"\n' + ROW, "line 2 column 13 is not JSON"),
        ("a.jsonl", ROW * 2 + "\n[1]\n", "line 4 is not a JSON object"),
        ("a.jsonl", ROW * 500 + '{"text": "a', "line 501 column 10 is not JSON"),
        ("a.jsonl.gz", ROW + "nothing", "line 2 column 1 is not JSON"),
        ("a.jsonl", ROW * 90_000 + '{"text": "a', "last line column 10 is not JSON"),
        ("a.json", ROW * 200 + "{", "line 201 column 2 is not JSON"),
        ("a.json", '[{"text": "a"}, {"te', "is an array of JSON without its end"),
        ("a.parquet", "PAR1 and then nothing", "is no whole parquet file"),
        ("a.jsonl", b"\xff\xfe\n", "line 1 is not UTF-8"),
        ("a.jsonl", ROW.encode() * 300 + b'{"text": "\xff"}', "line 301 is not UTF-8"),
    ],
)
def test_records_that_cannot_be_read_are_told(
    name: str, content: str | bytes, told: str, tmp_path: Path
) -> None:
    """Row A17 of the defect list: a file whose only line was no JSON passed."""
    file = tmp_path / name
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(ProblemsFound) as caught:
        check_first_and_last_record(file)
    (problem,) = caught.value.problems
    assert problem.path == ("path",) and problem.hint and told in problem.message


def test_a_whole_file_passes(tmp_path: Path) -> None:
    for name, content in {
        "a.jsonl": "\ufeff" + ROW * 300 + "\n\n",
        "one.jsonl": ROW.strip(),
        "b.json": '[{"text": "a"}]\n',
        "c.json": ROW * 3,
        "empty.jsonl": "",
        "d.csv": "text\n{",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
        check_first_and_last_record(tmp_path / name)
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "e.parquet")
    check_first_and_last_record(tmp_path / "e.parquet")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a.jsonl", "name it a.jsonl.gz, and let path match that"),
        ("a.csv", "name it a.csv.gz, and let path match that"),
        ("a.txt", "name it a.txt.gz, and let path match that"),
        ("zstd.json", "name it zstd.json.zst, and let path match that"),
        ("table.jsonl", "name it table.parquet, and let path match that"),
        ("feather.txt", "name it feather.arrow, and let path match that"),
        ("archive.jsonl", "decompress it, or compress it as .gz or .zst"),
    ],
)
def test_a_file_of_another_format_is_told_its_name(name: str, told: str, tmp_path: Path) -> None:
    file, table = tmp_path / name, pa.table({"text": ["a"]})
    if name.startswith("table"):
        pq.write_table(table, file)
    elif name.startswith("feather"):
        feather.write_feather(table, file)
    elif name.startswith("zstd"):
        with pa.output_stream(str(file), compression="zstd") as written:
            written.write(ROW.encode())
    elif name.startswith("archive"):
        file.write_bytes(lzma.compress(ROW.encode()))
    else:
        file.write_bytes(gzip.compress(ROW.encode()))
    with pytest.raises(ProblemsFound) as caught:
        check_first_and_last_record(file)
    (problem,) = caught.value.problems
    assert f"although its name says {file.suffix}" in problem.message and problem.hint == told


def test_texts_that_begin_like_another_format_pass(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("PAR1 and ARROW1 and PK are words here")
    check_first_and_last_record(tmp_path / "a.txt")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_text_that_is_named_as_compressed_is_told_its_name(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.jsonl{suffix}"
    file.write_text('{"text": "a"}\n')
    with pytest.raises(ProblemsFound) as found:
        check_first_and_last_record(file)
    (problem,) = found.value.problems
    assert problem.message == f"'{file}' is not compressed, although its name says {suffix}"
    assert problem.hint == "name it a.jsonl, and let path match that"


@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_that_is_named_as_lines_is_told_its_name(
    tmp_path: Path, indent: int | None
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps([{"text": "a"}, {"text": "b"}], indent=indent))
    with pytest.raises(ProblemsFound) as found:
        check_first_and_last_record(file)
    (problem,) = found.value.problems
    assert problem.message == f"'{file}' is one JSON array, although its name says .jsonl"
    assert problem.hint == "name it a.json, and let path match that"
    check_first_and_last_record(file.rename(tmp_path / "a.json"))


def test_lines_that_are_arrays_are_no_array(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("[1, 2]\n[3, 4]\n")
    with pytest.raises(ProblemsFound, match="line 1 is not a JSON object"):
        check_first_and_last_record(file)
