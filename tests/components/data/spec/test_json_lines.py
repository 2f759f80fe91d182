"""Files whose records cannot be read are found before a run."""

import gzip
from pathlib import Path

import pyarrow as pa
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
        ("a.jsonl", ROW * 500 + '{"text": "a', "last line column 10 is not JSON"),
        ("a.jsonl.gz", ROW + "nothing", "line 2 column 1 is not JSON"),
        ("a.json", ROW * 200 + "{", "last line column 2 is not JSON"),
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
