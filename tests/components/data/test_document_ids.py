"""Documents of a row are numbered by where positions start anew, or after end-of-text tokens; by
one of them."""

import pytest
import torch

from titanrun.components.data.document_ids import get_document_id_fn
from titanrun.components.data.token_batch import TokenBatch
from titanrun.config.problems import ProblemsFound

END = 9
ROWS = torch.tensor([[5, END, 6, 7, END, END, 8], [1, 2, 3, 4, 5, 6, END]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0], [3, 4, 5, 6, 7, 8]])


def batch(positions=None):
    made = TokenBatch.from_sequences(ROWS)
    return TokenBatch(made.tokens, made.labels, positions, made.loss_mask)


def test_a_document_ends_with_its_end_token():
    marked = get_document_id_fn("eos", eos_id=END)(batch())
    assert marked.document_ids.tolist() == [[0, 0, 1, 1, 1, 2], [0] * 6]


def test_a_document_begins_where_a_position_is_not_the_next():
    marked = get_document_id_fn("positions", eos_id=END)(batch(POSITIONS))
    assert marked.document_ids.tolist() == [[0, 0, 0, 1, 1, 2], [0] * 6]


def test_rows_without_positions_or_without_a_source_are_one_document():
    assert get_document_id_fn("positions", eos_id=END)(batch()).document_ids is None
    assert get_document_id_fn(None, eos_id=END)(batch(POSITIONS)).document_ids is None


def test_counted_positions_leave_the_documents_to_the_end_tokens():
    counted = torch.arange(6).expand(2, 6)
    assert get_document_id_fn("eos", eos_id=END)(batch(counted)).document_ids.tolist() == [
        [0, 0, 1, 1, 1, 2],
        [0] * 6,
    ]


def test_two_sources_at_once_are_a_problem():
    with pytest.raises(ProblemsFound) as found:
        get_document_id_fn("eos", eos_id=END)(batch(POSITIONS))
    assert found.value.problems[0].path == ("model", "attention", "documents")


def test_a_tokenizer_without_an_end_token_ends_no_documents():
    with pytest.raises(ProblemsFound) as found:
        get_document_id_fn("eos", eos_id=None)
    assert found.value.problems[0].path == ("model", "attention", "documents")


def test_a_share_of_each_row_keeps_the_documents_of_whole_rows():
    marked = get_document_id_fn("eos", eos_id=END)(batch())
    share = marked.slice_sequence(lambda whole: whole[:, 2:4])
    assert share.tokens.shape == (2, 2)
    assert torch.equal(share.document_ids, marked.document_ids)
    assert [part.document_ids.tolist() for part in marked.split(1)] == [
        [[0, 0, 1, 1, 1, 2]],
        [[0] * 6],
    ]


@pytest.mark.parametrize("source", ["eos", "positions"])
def test_a_row_of_one_token_is_one_document(source):
    """Row A9 of the defect list: rows of one token got ids of shape [N, 0]."""
    made = TokenBatch.from_sequences(ROWS[:, :2])
    one = TokenBatch(made.tokens, made.labels, torch.tensor([[0], [3]]), made.loss_mask)
    marked = get_document_id_fn(source, eos_id=END)(one)
    assert marked.tokens.shape == (2, 1) and marked.document_ids.tolist() == [[0], [0]]


def test_starts_are_the_columns_of_first_tokens_padded_to_a_power_of_two():
    marked = get_document_id_fn("eos", eos_id=END, needs_starts=True)(batch())
    assert marked.document_starts.dtype == torch.int32
    assert marked.document_starts.tolist() == [[0, 2, 5, 6], [0, 6, 6, 6]]
    # a row of a split batch keeps its own
    assert marked.split(1)[1].document_starts.tolist() == [[0, 6, 6, 6]]
    assert get_document_id_fn("eos", eos_id=END)(batch()).document_starts is None
    # nothing is read back from an accelerator
    away = get_document_id_fn("positions", eos_id=END, needs_starts=True)(
        batch(POSITIONS).to("meta")
    )
    assert away.document_starts is None
