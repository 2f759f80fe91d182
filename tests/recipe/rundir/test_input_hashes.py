"""Files told apart by size, time and a digest; of large ones by samples, which is said."""

import os
from pathlib import Path

import pytest

from titanrun.recipe.rundir import input_hashes
from titanrun.recipe.rundir.input_hashes import (
    BLOCK_BYTES,
    BLOCKS,
    WHOLE_BYTES,
    hash_input,
    select_blocks,
)


def test_another_byte_or_name_is_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one")
    before = hash_input("a.txt", file)
    assert (before["files"], before["bytes"], before["sampled"]) == (1, 3, False)
    file.write_bytes(b"two")
    assert hash_input("a.txt", file)["xxh3_128"] != before["xxh3_128"]
    file.write_bytes(b"one")
    assert hash_input("a.txt", file)["xxh3_128"] == before["xxh3_128"]
    folder = hash_input("folder", tmp_path)
    file.rename(tmp_path / "b.txt")
    assert hash_input("folder", tmp_path)["xxh3_128"] != folder["xxh3_128"]


def test_a_folder_and_a_pattern_name_each_of_a_few_files(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(hash_input("folder", tmp_path)["each"]) == ["a.txt", "b.txt", "deep/c.txt"]
    assert list(hash_input("*.txt", tmp_path / "*.txt")["each"]) == ["a.txt", "b.txt"]
    assert set(hash_input("gone", tmp_path / "gone")) == {"path", "absolute"}


def test_blocks_of_a_large_file_reach_from_its_first_to_its_last_byte() -> None:
    size = 10 * WHOLE_BYTES + 17
    found = select_blocks(size)
    assert (found[0][0], sum(found[-1])) == (0, size)
    assert sum(length for _, length in found) == BLOCKS * BLOCK_BYTES
    assert select_blocks(WHOLE_BYTES) == [(0, WHOLE_BYTES)]


def test_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_hashes, "WHOLE_BYTES", 4096)
    monkeypatch.setattr(input_hashes, "BLOCK_BYTES", 16)
    file = tmp_path / "large.bin"
    file.write_bytes(bytes(8192))
    before = hash_input("large.bin", file)
    assert before["sampled"]
    with file.open("r+b") as opened:
        opened.seek(8190)
        opened.write(b"x")
    assert hash_input("large.bin", file)["xxh3_128"] != before["xxh3_128"]


def test_of_very_many_files_the_rest_counts_by_name_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_hashes, "MOST_READ", 2)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("x")
    before = hash_input("folder", tmp_path)
    assert before["sampled"]
    (tmp_path / "3.txt").write_text("xx")
    assert hash_input("folder", tmp_path)["xxh3_128"] != before["xxh3_128"]


def test_the_time_is_the_newest_one(tmp_path: Path) -> None:
    for name, seconds in (("a", 1_000_000_000), ("b", 2_000_000_000)):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (seconds, seconds))
    assert hash_input("folder", tmp_path)["modified"].startswith("2033-05-18T03:33:20")
