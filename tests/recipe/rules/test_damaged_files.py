"""Damaged files of a dataset are told before a run, unless it leaves them out."""

import gzip
import json
from pathlib import Path

import pytest

from titanrun.config.problems import Problem
from titanrun.recipe.resolving.validation_levels import validate_file

STREAM = ", streaming: true"
SKIP = f"{STREAM}, bad_files: skip, max_bad_files: 3"


def write_texts(folder: Path, num_files: int) -> list[Path]:
    files = [folder / f"{number:02}.jsonl.gz" for number in range(num_files)]
    for number, file in enumerate(files):
        texts = (f"words {number} {line} {line * 7919 % 1000}" for line in range(400))
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        file.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return files


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:300])


def garble(file: Path) -> None:
    """Change a letter within the stored bytes of the first lines."""
    lines = gzip.decompress(file.read_bytes()).replace(b'{"text"', b'{?text"', 1)
    content = bytearray(gzip.compress(lines, mtime=0))
    content[-8] ^= 1  # of the checksum
    file.write_bytes(content)


def validate(folder: Path, more: str) -> list[Problem]:
    return [one for one in find_problems(folder, more) if one.rule == "records-are-json"]


def find_problems(folder: Path, more: str = "") -> list[Problem]:
    recipe = folder.parent / "mine.yaml"
    recipe.write_text(
        "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
        f"training: {{dataset: {{name: text, path: {folder}{more}}}, seq_len: 64}}\n"
    )
    found = validate_file(str(recipe), [], level="environment", environment={})
    return list(found.problems)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    return folder


def test_a_link_to_nothing_is_told_once(folder: Path) -> None:
    """Two rules read the files, and each told it."""
    write_texts(folder, 2)
    (folder / "gone.jsonl").symlink_to("nothing")
    (problem,) = (one for one in find_problems(folder) if one.severity == "error")
    assert problem.message == f"'{folder}/gone.jsonl' cannot be read: a link to nothing"


def test_every_damaged_file_is_told(folder: Path) -> None:
    files = write_texts(folder, 8)
    assert validate(folder, STREAM) == []
    cut(files[2])
    cut(files[5])
    told = validate(folder, STREAM)
    assert [one.message.split("'")[1] for one in told] == [str(files[2]), str(files[5])]
    assert all("bad_files: skip and max_bad_files" in str(one.hint) for one in told)
    for file in files:
        cut(file)
    assert len(validate(folder, STREAM)) == 5


def test_a_stream_that_leaves_damaged_files_out_may_have_them(folder: Path) -> None:
    cut(write_texts(folder, 8)[2])
    assert validate(folder, SKIP) == []
    # an index is built of whole files
    (told,) = validate(folder, "")
    assert told.hint == "fetch or write it again"


def test_a_wrong_record_of_a_damaged_file_is_told_with_the_damage(folder: Path) -> None:
    file = write_texts(folder, 1)[0]
    garble(file)
    # a stream meets the wrong record before the checksum
    (told,) = validate(folder, SKIP)
    assert told.message.startswith(f"'{file}' line 1 column 2 is not JSON")
    assert "; the file is damaged: CRC check failed" in told.message


def test_a_line_that_is_no_record_is_told_whatever_is_left_out(folder: Path) -> None:
    file = write_texts(folder, 1)[0]
    file.write_bytes(gzip.compress(b'{"text": "a"}\nwords\n'))
    (told,) = validate(folder, SKIP)
    assert told.message.startswith(f"'{file}' line 2 column 1 is not JSON")
