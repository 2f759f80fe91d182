"""The batch of a language model."""

import numpy as np
import pytest
import torch

from titanrun.components.data.token_batch import (
    IGNORE_INDEX,
    TokenBatch,
    TokenSample,
    select_token_ids,
)

ROWS = np.arange(24, dtype=np.int64).reshape(4, 6)


def test_labels_are_the_tokens_that_follow() -> None:
    batch = TokenBatch.from_sequences(ROWS)
    assert batch.tokens.tolist() == ROWS[:, :-1].tolist()
    assert batch.labels.tolist() == ROWS[:, 1:].tolist()
    assert batch.positions is None
    assert batch.loss_mask.all() and batch.loss_mask.shape == batch.labels.shape
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64


def test_rows_may_be_a_tensor() -> None:
    assert (
        TokenBatch.from_sequences(torch.from_numpy(ROWS)).tokens.tolist()
        == TokenBatch.from_sequences(ROWS).tokens.tolist()
    )


def test_ignored_and_masked_labels_do_not_count() -> None:
    batch = TokenBatch.from_sequences(ROWS)
    batch.labels[0, 0] = IGNORE_INDEX
    batch.loss_mask[0, :2] = False
    batch.loss_mask[3] = False
    assert batch.num_valid_tokens().item() == 20 - 2 - 5
    assert batch.num_valid_tokens().dtype == torch.int64
    assert batch.label_mask().sum(dim=1).tolist() == [3, 5, 5, 0]


def test_parts_hold_consecutive_rows_of_every_tensor() -> None:
    whole = TokenBatch.from_sequences(ROWS)
    batch = TokenBatch(
        whole.tokens, whole.labels, whole.tokens * 0, whole.loss_mask, {"weight": whole.tokens * 2}
    )
    parts = batch.split(3)
    assert [len(part.tokens) for part in parts] == [3, 1]
    assert parts[1].labels.tolist() == batch.labels[3:].tolist()
    assert parts[1].positions is not None and parts[1].positions.shape == (1, 5)
    assert parts[1].extra["weight"].tolist() == batch.extra["weight"][3:].tolist()


def test_a_share_of_each_row_keeps_its_labels_and_knows_its_positions() -> None:
    whole = TokenBatch.from_sequences(ROWS)
    share = whole.slice_sequence(lambda tensor: tensor[:, 2:4])
    assert share.tokens.tolist() == ROWS[:, 2:4].tolist()
    assert share.labels.tolist() == ROWS[:, 3:5].tolist()
    assert share.positions is not None and share.positions.tolist() == [[2, 3]] * 4
    packed = TokenBatch(
        whole.tokens, whole.labels, whole.tokens % 3, whole.loss_mask
    ).slice_sequence(lambda tensor: tensor[:, 2:4])
    assert packed.positions is not None and packed.positions.tolist() == (ROWS[:, 2:4] % 3).tolist()


def test_a_moved_batch_takes_everything_along() -> None:
    whole = TokenBatch.from_sequences(ROWS)
    moved = TokenBatch(
        whole.tokens, whole.labels, whole.tokens, whole.loss_mask, {"weight": whole.tokens}
    ).to("meta")
    assert moved.positions is not None
    devices = {
        tensor.device.type
        for tensor in (
            moved.tokens,
            moved.labels,
            moved.positions,
            moved.loss_mask,
            moved.extra["weight"],
        )
    }
    assert devices == {"meta"}


def test_padded_sequences_count_by_their_lengths_and_not_by_an_id() -> None:
    # id 7 is in a sequence and in its filling
    right = torch.tensor([[7, 1, 7, 7, 7], [2, 3, 4, 5, 7]])
    left = torch.tensor([[7, 7, 7, 1, 7], [7, 2, 3, 4, 5]])
    lengths, mask = torch.tensor([3, 4]), torch.ones(2, 5)
    value = torch.arange(10.0).view(2, 5)
    for tokens, side in ((right, "right"), (left, "left")):
        if side == "left":
            tokens[0, 2:] = torch.tensor([7, 1, 7])
        batch = TokenBatch.from_padded(
            tokens, lengths, padding_side=side, loss_mask_NT=mask, value=value
        )
        assert batch.tokens[0, :3].tolist() == [7, 1, 7] and batch.tokens[1, :4].tolist() == [
            2,
            3,
            4,
            5,
        ]
        assert batch.labels.masked_fill(~batch.label_mask(), -1).tolist() == [
            [1, 7, -1, -1, -1],
            [3, 4, 5, -1, -1],
        ]
        assert batch.positions is not None and batch.positions.tolist() == [
            [0, 1, 2, 0, 1],
            [0, 1, 2, 3, 0],
        ]
    # what belongs to a token stands beside the one before it
    assert TokenBatch.from_padded(right, lengths, value=value).extra["value"].tolist() == [
        [1, 2, 0, 0, 0],
        [6, 7, 8, 0, 0],
    ]
    assert TokenBatch.from_padded(left, lengths, padding_side="left", value=value).extra[
        "value"
    ].tolist() == [[3, 4, 0, 0, 0], [7, 8, 9, 0, 0]]


def test_jagged_sequences_are_one_row_in_which_none_leads_to_the_next() -> None:
    values, offsets = torch.tensor([7, 1, 7, 2, 3, 4, 5]), torch.tensor([0, 3, 7])
    batch = TokenBatch.from_jagged(
        values, offsets, loss_mask_X=torch.tensor([0, 0, 1, 0, 1, 1, 1]), value=torch.arange(7.0)
    )
    assert batch.labels.masked_fill(~batch.label_mask(), -1).tolist() == [[-1, 7, -1, 3, 4, 5, -1]]
    assert batch.positions is not None and batch.positions.tolist() == [[0, 1, 2, 0, 1, 2, 3]]
    assert batch.extra["value"].tolist() == [[1, 2, 0, 4, 5, 6, 0]]


def test_samples_share_rows_in_their_order_and_filling_is_a_document_of_its_own() -> None:
    samples = [
        TokenSample([1, 2, 3], [True, False, True], {"weight": 0.5, "value": [7.0, 8.0, 9.0]}),
        TokenSample([4, 5, 6], [False, True, True], {"weight": 2.0, "value": [1.0, 2.0, 3.0]}),
        TokenSample([7, 8, 9, 10], [False, True, True, True]),
    ]
    batch = TokenBatch.from_samples(
        samples, seq_len=5, batch_size_multiple=3, extra=("weight", "value")
    )
    assert batch.tokens.tolist() == [[1, 2, 4, 5, 0], [7, 8, 9, 0, 0], [0] * 5]
    assert batch.labels.tolist() == [
        [2, 3, 5, 6, IGNORE_INDEX],
        [8, 9, 10, IGNORE_INDEX, IGNORE_INDEX],
        [IGNORE_INDEX] * 5,
    ]
    assert batch.positions is not None and batch.positions.tolist() == [
        [0, 1, 0, 1, 0],
        [0, 1, 2, 0, 1],
        [0, 1, 2, 3, 4],
    ]
    assert batch.loss_mask.long().tolist() == [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0], [0] * 5]
    assert batch.extra["sequences"].tolist() == [[0, 0, 1, 1, -1], [2, 2, 2, -1, -1], [-1] * 5]
    assert batch.extra["weight"].tolist()[0] == [0.5, 0.5, 2.0, 2.0, 0.0]
    assert batch.extra["value"].tolist()[0] == [8.0, 9.0, 2.0, 3.0, 0.0]
    assert (
        len(
            TokenBatch.from_samples(
                samples, seq_len=5, allows_packing=False, extra=("weight", "value")
            ).tokens
        )
        == 3
    )
    assert TokenBatch.from_samples([], seq_len=5).num_valid_tokens() == 0
    for length in (1, 7):
        with pytest.raises(ValueError, match=f"a sample has {length} tokens"):
            TokenBatch.from_samples([TokenSample([0] * length, [True] * length)], seq_len=5)


def test_what_a_rank_takes_of_a_pinned_batch_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda tensor: [pinned.append(tensor), tensor][1]
    )
    for is_pinned in (False, True):
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor, answer=is_pinned: answer)
        share = TokenBatch.from_sequences(ROWS).slice_sequence(lambda tensor: tensor[:, ::2])
        assert any(share.tokens is tensor for tensor in pinned) is is_pinned


def test_ids_are_the_first_channel() -> None:
    samples = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(select_token_ids(samples), samples[:, 0])
    assert select_token_ids(samples[0]) is not None
    assert np.array_equal(select_token_ids(samples[0]), samples[0])
