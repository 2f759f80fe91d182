"""What each token is told of the tokens behind the next one."""

from dataclasses import replace

import pytest
import torch

from titanrun.components.data.document_ids import document_ids_from_positions
from titanrun.components.data.mtp_labels import (
    attach_mtp_labels,
    select_mtp_labels,
    stack_mtp_tokens,
)
from titanrun.components.data.token_batch import IGNORE_INDEX, TokenBatch


@pytest.mark.parametrize("marks", [False, True], ids=["row", "documents"])
def test_nothing_is_told_across_the_end_of_a_row_or_of_a_document(marks):
    rows = torch.arange(10, 10 + 2 * 9).view(2, 9)
    batch = TokenBatch.from_sequences(rows)
    batch = replace(
        batch, positions=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1]])
    )
    batch.loss_mask[1, 2] = False
    documents = batch.positions.new_tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]])
    told = attach_mtp_labels(document_ids_from_positions(batch) if marks else batch, 3)
    found = stack_mtp_tokens(told, 3)
    for places in (1, 2, 3):
        labels = select_mtp_labels(told, places)
        for row in range(2):
            for column in range(8):
                behind = column + places
                there = behind < 8 and (
                    not marks or documents[row, behind] == documents[row, column]
                )
                assert found[places - 1, row, column] == (rows[row, behind] if there else 0)
                counts = there and (row, behind) != (1, 2)
                assert labels.labels[row, column] == (
                    rows[row, behind + 1] if counts else IGNORE_INDEX
                )
                assert labels.label_mask()[row, column] == counts
