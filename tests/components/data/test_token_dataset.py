"""Rows from .npy files made elsewhere."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from titanrun.components.data import token_file
from titanrun.components.data.config import TokensDatasetConfig
from titanrun.components.data.indexed_dataset import IndexedDataset
from titanrun.components.data.token_dataset import build_token_dataset
from titanrun.config.problems import Problem, ProblemsFound


def rows_of(path: Path, row_length: int = 5) -> IndexedDataset:
    return build_token_dataset(TokensDatasetConfig(path=str(path)), sample_length=row_length)


def saved(folder: Path, array: Any) -> Path:
    np.save(folder / "rows.npy", np.asarray(array))
    return folder / "rows.npy"


def problem_of(path: Path, row_length: int = 5) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        rows_of(path, row_length)
    (problem,) = caught.value.problems
    # placed at the dataset's path, but data that is too short for seq_len at the dataset as a whole
    assert problem.code == "data" and problem.hint
    assert problem.path == (() if "needs 5" in problem.message else ("path",))
    return problem


@pytest.mark.parametrize("dtype", ["uint8", "<u2", ">i4", "int64", "uint64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_two_dimensions_are_rows_in_the_given_order(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.arange(20).reshape(4, 5)[::-1].astype(dtype, order=order)
    rows = rows_of(saved(tmp_path, array))
    assert len(rows) == 4
    assert [rows[index].tolist() for index in range(4)] == array.tolist()
    assert rows[0].dtype == np.int64
    assert rows.max_token_id == 19


def test_one_dimension_is_a_stream(tmp_path: Path) -> None:
    rows = rows_of(saved(tmp_path, np.arange(13, dtype=np.uint16)))
    assert [rows[index].tolist() for index in range(len(rows))] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9],
    ]


def test_a_width_that_does_not_fit_names_the_seq_len_that_would(tmp_path: Path) -> None:
    problem = problem_of(saved(tmp_path, np.zeros((3, 129), dtype=np.int32)), 257)
    assert "rows of 129 tokens, seq_len 256 needs 257" in problem.message
    assert problem.hint == "set seq_len to 128"


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.zeros((3, 5)), "holds float64, not integers"),
        (np.zeros((3, 5), dtype=bool), "holds bool, not integers"),
        (np.zeros((3, 5, 1), dtype=int), "has 3 dimensions"),
        (np.array(3), "has 0 dimensions"),
        (np.array([[1, 2, 3, 4, -7]]), "holds the token id -7"),
        (np.arange(4), "has 4 tokens, one sequence of seq_len 4 needs 5"),
        (np.zeros(0, dtype=int), "has 0 tokens"),
        (np.array([{"a": 1}]), "cannot be read as a .npy file"),
    ],
)
def test_arrays_that_are_no_token_ids_are_refused(tmp_path: Path, array: Any, told: str) -> None:
    assert told in problem_of(saved(tmp_path, array)).message


def test_files_that_are_no_arrays_are_refused(tmp_path: Path) -> None:
    assert "file not found" in problem_of(tmp_path / "absent.npy").message
    assert "is a folder" in problem_of(tmp_path).message
    for name, content in (
        ("empty", b""),
        ("text", b"1 2 3\n"),
        ("pickle", b"\x80\x04K\x05."),
        ("zip", b"PK\x03\x04" + bytes(60)),
    ):
        (tmp_path / name).write_bytes(content)
        assert "cannot be read as a .npy file" in problem_of(tmp_path / name).message


@given(cut=st.integers(0, 147), change=st.tuples(st.integers(0, 127), st.integers(0, 255)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_a_problem_or_still_rows(
    tmp_path: Path, cut: int, change: tuple[int, int]
) -> None:
    content = bytearray(saved(tmp_path, np.arange(10, dtype=np.uint16)).read_bytes())
    content[change[0]] = change[1]
    (tmp_path / "damaged.npy").write_bytes(content[:cut])
    try:
        rows_of(tmp_path / "damaged.npy")
    except ProblemsFound as found:
        assert found.exit_code == 3


def test_the_fingerprint_is_of_the_content_not_of_the_file(tmp_path: Path) -> None:
    array = np.arange(50, dtype=np.uint16).reshape(10, 5)
    first = rows_of(saved(tmp_path, array))
    os.utime(tmp_path / "rows.npy", (1, 1))
    assert rows_of(tmp_path / "rows.npy").fingerprint == first.fingerprint
    array[7, 3] += 1
    assert rows_of(saved(tmp_path, array)).fingerprint != first.fingerprint


def test_a_very_large_file_is_sampled_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_file, "MAX_FULL_READ_BYTES", 256)
    monkeypatch.setattr(token_file, "HASH_BLOCK_BYTES", 16)
    stream = np.arange(1003, dtype=np.uint16)
    blocks = list(token_file.iter_token_blocks(stream))
    assert sum(map(len, blocks)) == 128
    assert blocks[0][0] == 0 and blocks[-1][-1] == 1002
