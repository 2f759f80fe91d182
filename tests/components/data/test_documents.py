"""Documents of a row are numbered by where positions start anew, or after end-of-text tokens; by one of them."""

import pytest
import torch

from titanrun.components.data.batch import TokenBatch
from titanrun.components.data.documents import marking
from titanrun.config.problems import ProblemsFound

END = 9
ROWS = torch.tensor([[5, END, 6, 7, END, END, 8], [1, 2, 3, 4, 5, 6, END]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0], [3, 4, 5, 6, 7, 8]])


def batch(positions=None):
    made = TokenBatch.from_rows(ROWS)
    return TokenBatch(made.tokens, made.labels, positions, made.loss_mask)


def test_a_document_ends_with_its_end_token():
    marked = marking("eos", eos_id=END)(batch())
    assert marked.documents.tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]


def test_a_document_begins_where_a_position_is_not_the_next():
    marked = marking("positions", eos_id=END)(batch(POSITIONS))
    assert marked.documents.tolist() == [[0, 0, 0, 1, 1, 2], [0] * 6]


def test_rows_without_positions_or_without_a_source_are_one_document():
    assert marking("positions", eos_id=END)(batch()).documents is None
    assert marking(None, eos_id=END)(batch(POSITIONS)).documents is None


def test_counted_positions_leave_the_documents_to_the_end_tokens():
    counted = torch.arange(6).expand(2, 6)
    assert marking("eos", eos_id=END)(batch(counted)).documents.tolist() == [
        [0, 0, 1, 1, 1, 2],
        [0] * 6,
    ]


def test_two_sources_at_once_are_a_problem():
    with pytest.raises(ProblemsFound) as found:
        marking("eos", eos_id=END)(batch(POSITIONS))
    assert found.value.problems[0].path == ("model", "attention", "documents")


def test_a_tokenizer_without_an_end_token_ends_no_documents():
    with pytest.raises(ProblemsFound) as found:
        marking("eos", eos_id=None)
    assert found.value.problems[0].path == ("model", "attention", "documents")


def test_a_share_of_each_row_keeps_the_documents_of_whole_rows():
    marked = marking("eos", eos_id=END)(batch())
    share = marked.shared(lambda whole: whole[:, 2:4])
    assert share.tokens.shape == (2, 2)
    assert torch.equal(share.documents, marked.documents)
    assert [part.documents.tolist() for part in marked.split(1)] == [
        [[0, 0, 1, 1, 1, 2]],
        [[0] * 6],
    ]
