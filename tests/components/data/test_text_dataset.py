"""Rows from local text files."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from titanrun.components.data.c4_config import C4TestDatasetConfig
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.record_readers import FORMAT_READERS
from titanrun.components.data.spec.data_files import SUFFIXES, resolve_data_files
from titanrun.components.data.text_dataset import build_text_dataset
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.rundir.input_hashes import hash_input


def rows_of(path: Path | str, tokenizer: Tokenizer, cache: Path, **options: Any) -> IndexedDataset:
    return build_text_dataset(
        TextDatasetConfig(path=str(path), **options),
        tokenizer=tokenizer,
        sample_length=2,
        cache_folder=cache,
    )


def ids_of(path: Path | str, tokenizer: Tokenizer, cache: Path, **options: Any) -> list[int]:
    """All ids; a missing EOS at the end fell to the row length of two."""
    rows = rows_of(path, tokenizer, cache, **options)
    return [token for index in range(len(rows)) for token in rows[index].tolist()]


def expected(tokenizer: Tokenizer, *documents: str) -> list[int]:
    ids = [token for document in documents for token in tokenizer.encode(document)]
    return ids[: len(ids) // 2 * 2]


def problem_of(path: Path | str, tokenizer: Tokenizer, cache: Path, **options: Any) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        rows_of(path, tokenizer, cache, **options)
    (problem,) = caught.value.problems
    assert problem.code == "data" and problem.hint
    assert not list(cache.glob("*")) and not list(cache.glob(".*"))
    return problem


def write_jsonl(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_the_sample_of_c4_is_read_as_any_other_text(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found where torchtitan keeps it, below the working folder, or where path says."""
    assets = tmp_path / "tests" / "assets" / "c4_test"
    assets.mkdir(parents=True)
    write_jsonl(
        assets / "data.json",
        *(
            {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "x"}
            for text in ("one", "zwei")
        ),
    )
    elsewhere = write_jsonl(tmp_path / "other.json", {"text": "three"}, {"text": "four"})
    monkeypatch.chdir(tmp_path)
    for config, texts in (
        (C4TestDatasetConfig(), ("one", "zwei")),
        (C4TestDatasetConfig(path=str(elsewhere)), ("three", "four")),
    ):
        rows = build_text_dataset(
            config, tokenizer=tokenizer, sample_length=2, cache_folder=tmp_path / "cache"
        )
        found = [token for row in range(len(rows)) for token in rows[row].tolist()]
        assert found == expected(tokenizer, *texts)
    monkeypatch.chdir(assets)
    with pytest.raises(ProblemsFound, match="tests/assets/c4_test"):
        build_text_dataset(
            C4TestDatasetConfig(),
            tokenizer=tokenizer,
            sample_length=2,
            cache_folder=tmp_path / "cache",
        )


def test_each_line_of_jsonl_is_a_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    texts = ["one", "", "zwei\nü\u2028☃", "2024-01-01 00:00:00", "three"]
    file = write_jsonl(
        tmp_path / "a.jsonl", *({"n": number, "text": text} for number, text in enumerate(texts))
    )
    file.write_text("\n" + file.read_text() + " \n\n")
    assert ids_of(file, tokenizer, tmp_path / "cache") == expected(tokenizer, *texts)


@pytest.mark.parametrize(
    "data_type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_each_row_of_parquet_is_a_document(
    tmp_path: Path, tokenizer: Tokenizer, data_type: pa.DataType
) -> None:
    texts = [f"document {number}" for number in range(3000)]
    file = write_parquet(
        tmp_path / "a.parquet", body=pa.array(texts).cast(data_type), n=pa.array(range(3000))
    )
    assert ids_of(file, tokenizer, tmp_path / "cache", column="body") == expected(tokenizer, *texts)


def test_a_txt_file_is_one_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\n two\nthree")
    assert ids_of(tmp_path / "a.txt", tokenizer, tmp_path / "cache") == expected(
        tokenizer, "one\n\n two\nthree"
    )


def test_files_of_a_folder_come_in_sorted_order(tmp_path: Path, tokenizer: Tokenizer) -> None:
    folder = tmp_path / "data [1]*"
    (folder / "deep").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in (
        "b.txt",
        "a.txt",
        "deep/c.txt",
        ".hidden.txt",
        ".git/d.txt",
        "notes.md",
        "empty.txt",
    ):
        (folder / name).write_text(name.replace("empty.txt", ""))
    write_jsonl(folder / "a.jsonl", {"text": "json"})
    assert ids_of(folder, tokenizer, tmp_path / "cache") == expected(
        tokenizer, "json", "a.txt", "b.txt", "deep/c.txt"
    )


def test_a_glob_names_files(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("2.txt", "1.txt", "3.md"):
        (tmp_path / name).write_text(name)
    assert ids_of("[12].*", tokenizer, tmp_path / "cache") == expected(tokenizer, "1.txt", "2.txt")
    assert [file.as_posix() for file in resolve_data_files("**/*.txt")] == ["1.txt", "2.txt"]
    assert [file.as_posix() for file in resolve_data_files(f"../{tmp_path.name}/*.txt")] == [
        f"../{tmp_path.name}/{name}" for name in ("1.txt", "2.txt")
    ]
    assert resolve_data_files(str(tmp_path / "?.txt")) == [tmp_path / "1.txt", tmp_path / "2.txt"]


@pytest.mark.parametrize(
    ("line", "told", "place"),
    [
        ('{"text": "a" "b"}', "line 3 column 14 is not JSON: expecting ',' delimiter", "path"),
        ("[1]", "line 3 is not a JSON object", "path"),
        ('{"body": "a", "id": 1}', "line 3 has no column 'text'; it has: body, id", "column"),
        ('{"text": null}', "line 3 has null in column 'text', not text", "column"),
        ('{"text": 5}', "line 3 has int in column 'text', not text", "column"),
        ('{"text": ["a"]}', "line 3 has list in column 'text', not text", "column"),
        (
            '{"text": "a\\ud800b"}',
            "line 3 has half a surrogate pair in column 'text', at character 2",
            "path",
        ),
        ("[" * 100000, "line 3 column 201 is not JSON: nested deeper than 200 levels", "path"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, tokenizer: Tokenizer, line: str, told: str, place: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n\n' + line + '\n{"text": "good"}\n')
    problem = problem_of(tmp_path / "a.jsonl", tokenizer, tmp_path / "cache")
    assert f"'{tmp_path / 'a.jsonl'}' {told}" in problem.message
    assert problem.path == (place,)


def test_conversations_in_the_place_of_texts_name_their_dataset(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    (tmp_path / "a.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    problem = problem_of(tmp_path / "a.jsonl", tokenizer, tmp_path / "cache")
    assert problem.hint == "records of conversations are read by name: chat"


def test_text_in_another_encoding_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).write_bytes(b'{"text": "a"}\n{"text": "\xe4"}\n')
        assert (
            f"{name}' line 2 is not UTF-8"
            in problem_of(tmp_path / name, tokenizer, tmp_path / "cache").message
        )


def test_a_bad_parquet_file_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cache = tmp_path / "cache"
    other = write_parquet(tmp_path / "a.parquet", body=["a"], id=[1])
    assert (
        problem_of(other, tokenizer, cache).message
        == f"'{other}' has no column 'text'; it has: body, id"
    )
    holes = write_parquet(tmp_path / "b.parquet", text=["a", None])
    assert (
        f"'{holes}' row 2 has null in column 'text', not text"
        in problem_of(holes, tokenizer, cache).message
    )
    numbers = write_parquet(tmp_path / "c.parquet", text=[1, 2])
    assert (
        f"'{numbers}' row 1 has int in column 'text', not text"
        in problem_of(numbers, tokenizer, cache).message
    )
    good = write_parquet(tmp_path / "d.parquet", text=["a"]).read_bytes()
    for content in (b"", b"PAR1 no parquet", good[:8] + b"\xff" * 40 + good[48:]):
        (tmp_path / "d.parquet").write_bytes(content)
        problem = problem_of(tmp_path / "d.parquet", tokenizer, cache)
        assert (
            "d.parquet' cannot be read as parquet: " in problem.message
            and "\n" not in problem.message
        )


def test_paths_without_data_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "notes.md").write_text("a")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "a::b.parquet").write_bytes(b"PAR1")
    for path, told in (
        ("absent.txt", "file not found"),
        ("*.absent", "file not found"),
        ("docs", "names no .jsonl, .json, .parquet, .csv, .arrow, .txt file; found: notes.md"),
        ("docs/notes.md", "is not a .jsonl, .json, .parquet, .csv, .arrow or .txt file"),
        ("empty.txt", "holds no documents"),
        ("blank.jsonl", "holds no documents"),
        ("a::b.parquet", "has '::' in its name"),
    ):
        problem = problem_of(tmp_path / path, tokenizer, cache)
        assert told in problem.message and problem.path == ("path",), path


def test_every_ending_has_a_reader() -> None:
    assert {*FORMAT_READERS, ".txt"} == set(SUFFIXES)


def test_reading_is_silent_and_leaves_the_library_as_it_was(
    tmp_path: Path,
    tokenizer: Tokenizer,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    level = logging.getLogger("datasets").level
    file = write_jsonl(tmp_path / "a.jsonl", {"text": "one"})
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    rows_of(file, tokenizer, tmp_path / "cache")
    problem_of(tmp_path / "b.parquet", tokenizer, tmp_path / "other")
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.name.startswith("datasets")]
    assert logging.getLogger("datasets").level == level


BUILD_OFFLINE = """
import socket, sys
def refuse(*args): raise AssertionError("opened a connection")
socket.socket.connect = socket.getaddrinfo = refuse
from pathlib import Path
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.text_dataset import build_text_dataset
sys.path.insert(0, {tests!r})
from conftest import ByteTokenizer
assert "datasets" not in sys.modules
rows = build_text_dataset(
    TextDatasetConfig(path={path!r}),
    tokenizer=ByteTokenizer(),
    sample_length=5,
    cache_folder=Path({cache!r}),
)
print(len(rows))
"""


def test_building_needs_no_network_and_leaves_nothing_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write_jsonl(tmp_path / "a.jsonl", {"text": "one two three"})
    program = BUILD_OFFLINE.format(
        tests=str(Path(__file__).parent),
        path=str(tmp_path / "a.jsonl"),
        cache=str(tmp_path / "cache"),
    )
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path.cwd(),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert not list(home.iterdir())
    assert sorted(file.suffix for file in (tmp_path / "cache").iterdir()) == [
        ".blocks",
        ".json",
        ".json",
        ".npy",
    ]


def test_links_to_folders_are_followed_and_no_file_is_read_twice(tmp_path: Path) -> None:
    """Files behind them were left out without a word."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for file in (data / "part" / "a.jsonl", elsewhere / "below" / "b.jsonl"):
        file.parent.mkdir(parents=True)
        file.write_text('{"text": "one"}\n')
    (data / "more").symlink_to(elsewhere)
    expected = [data / "more" / "below" / "b.jsonl", data / "part" / "a.jsonl"]
    assert resolve_data_files(str(data)) == expected
    # twice the same, the folder around the link, and one folder by two names
    (data / "again").symlink_to("part")
    (elsewhere / "around").symlink_to(data)
    (data / "most").symlink_to(elsewhere)
    assert resolve_data_files(str(data)) == expected
    assert hash_input(str(data), data)["files"] == 2


def test_braces_name_files_of_several_folders_which_all_exist(tmp_path: Path) -> None:
    files = [tmp_path / folder / f"{name}.jsonl" for folder in ("code", "web") for name in "ab"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text('{"text": "one"}\n')
    named = f"{tmp_path}/{{web,code}}/{{a,*}}.jsonl"
    assert resolve_data_files(named) == files
    found = hash_input(named, Path(named))
    assert list(found["each"]) == [file.relative_to(tmp_path).as_posix() for file in files]
    with pytest.raises(ProblemsFound, match="file not found: "):
        resolve_data_files(f"{tmp_path}/{{web,other}}/a.jsonl")


@pytest.mark.parametrize("named", ["", "/*.jsonl", "/**/*.jsonl"])
def test_a_link_to_nothing_is_no_missing_file(tmp_path: Path, named: str) -> None:
    """Such links were left out without a word: of a mount that was not there, all files."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    # not read in any case
    (tmp_path / ".c.jsonl").symlink_to("nowhere")
    (tmp_path / "notes").symlink_to("nowhere")
    assert len(resolve_data_files(f"{tmp_path}{named}")) == 2
    (tmp_path / "d.jsonl").symlink_to("nowhere")
    with pytest.raises(ProblemsFound) as found:
        resolve_data_files(f"{tmp_path}{named}")
    (problem,) = found.value.problems
    assert problem.message == f"'{tmp_path}/d.jsonl' cannot be read: a link to nothing"
    assert (problem.rule, problem.path) == ("source-gone", ("path",))
