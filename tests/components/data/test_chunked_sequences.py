"""A token stream cut into rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanrun.components.data.chunked_sequences import (
    ConcatChunkedDataset,
    build_document_chunks,
    build_token_chunks,
)
from titanrun.components.data.file_change_guard import UnchangedFile
from titanrun.components.data.token_file import summarize_tokens
from titanrun.components.data.token_records import encode_document
from titanrun.config.problems import ProblemsFound

NO_FILE = UnchangedFile(Path("ids"), state=None, digest="")


def windows(ids: list[int], row_length: int) -> ConcatChunkedDataset:
    tokens = np.array(ids, dtype=np.uint16)
    return build_token_chunks(
        tokens,
        sample_length=row_length,
        summary=summarize_tokens(tokens, source="ids"),
        source="ids",
        file=NO_FILE,
    )


def test_two_documents_are_cut_as_in_the_worked_example() -> None:
    # sequence length 4; documents [10, 11] and [20 to 24] between BOS 1 and EOS 2
    rows = windows([1, 10, 11, 2, 1, 20, 21, 22, 23, 24, 2], 5)
    assert [row.tolist() for row in (rows[0], rows[1])] == [[1, 10, 11, 2, 1], [20, 21, 22, 23, 24]]
    assert len(rows) == 2
    assert rows[0].dtype == np.int64
    assert rows.max_token_id == 24


@given(count=st.integers(2, 60), row_length=st.integers(2, 12))
def test_windows_do_not_overlap_and_drop_only_the_tail(count: int, row_length: int) -> None:
    if count < row_length:
        with pytest.raises(
            ProblemsFound,
            match=f"has {count} tokens, one sequence of seq_len {row_length - 1} needs "
            f"{row_length}",
        ):
            windows(list(range(count)), row_length)
        return
    rows = windows(list(range(count)), row_length)
    joined = [token for index in range(len(rows)) for token in rows[index].tolist()]
    assert joined == list(range(count - count % row_length))


def test_positions_start_anew_with_each_document_and_each_window() -> None:
    documents = [[10, 11, 12], [20, 21, 22, 23, 24, 25], [30]]
    coded = np.concatenate(
        [encode_document(np.array(ids), is_document_start=True) for ids in documents]
    )
    rows = build_document_chunks(
        coded,
        sample_length=5,
        summary=summarize_tokens(coded, source="ids"),
        max_token_id=30,
        source="ids",
        file=NO_FILE,
    )
    assert len(rows) == 2
    assert [row[0].tolist() for row in (rows[0], rows[1])] == [
        [10, 11, 12, 20, 21],
        [22, 23, 24, 25, 30],
    ]
    # no label of another document: the first token of each has none
    assert [(row[1] != 0).tolist() for row in (rows[0], rows[1])] == [
        [False, True, True, False, True],
        [True, True, True, True, False],
    ]
    assert [row[2].tolist() for row in (rows[0], rows[1])] == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]


def test_other_ids_or_another_length_have_another_fingerprint() -> None:
    ids = list(range(20))
    fingerprints = {
        windows(ids, 4).fingerprint,
        windows(ids, 5).fingerprint,
        windows([*ids[:-1], 7], 4).fingerprint,
    }
    assert len(fingerprints) == 3
    assert windows(ids, 4).fingerprint == windows(ids, 4).fingerprint
