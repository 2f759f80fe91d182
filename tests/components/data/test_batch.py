"""The batch of a language model."""

import numpy as np
import torch

from titanrun.components.data.batch import IGNORE, TokenBatch

ROWS = np.arange(24, dtype=np.int64).reshape(4, 6)


def test_labels_are_the_tokens_that_follow() -> None:
    batch = TokenBatch.from_rows(ROWS)
    assert batch.tokens.tolist() == ROWS[:, :-1].tolist()
    assert batch.labels.tolist() == ROWS[:, 1:].tolist()
    assert batch.positions is None
    assert batch.loss_mask.all() and batch.loss_mask.shape == batch.labels.shape
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64


def test_rows_may_be_a_tensor() -> None:
    assert TokenBatch.from_rows(torch.from_numpy(ROWS)).tokens.tolist() == TokenBatch.from_rows(ROWS).tokens.tolist()


def test_ignored_and_masked_labels_do_not_count() -> None:
    batch = TokenBatch.from_rows(ROWS)
    batch.labels[0, 0] = IGNORE
    batch.loss_mask[0, :2] = False
    batch.loss_mask[3] = False
    assert batch.valid_count().item() == 20 - 2 - 5
    assert batch.valid_count().dtype == torch.int64
    assert batch.valid_mask().sum(dim=1).tolist() == [3, 5, 5, 0]


def test_parts_hold_consecutive_rows_of_every_tensor() -> None:
    whole = TokenBatch.from_rows(ROWS)
    batch = TokenBatch(whole.tokens, whole.labels, whole.tokens * 0, whole.loss_mask, {"weight": whole.tokens * 2})
    parts = batch.split(3)
    assert [len(part.tokens) for part in parts] == [3, 1]
    assert parts[1].labels.tolist() == batch.labels[3:].tolist()
    assert parts[1].positions is not None and parts[1].positions.shape == (1, 5)
    assert parts[1].extra["weight"].tolist() == batch.extra["weight"][3:].tolist()


def test_a_share_of_each_row_keeps_its_labels_and_knows_its_positions() -> None:
    whole = TokenBatch.from_rows(ROWS)
    share = whole.shared(lambda tensor: tensor[:, 2:4])
    assert share.tokens.tolist() == ROWS[:, 2:4].tolist()
    assert share.labels.tolist() == ROWS[:, 3:5].tolist()
    assert share.positions is not None and share.positions.tolist() == [[2, 3]] * 4
    packed = TokenBatch(whole.tokens, whole.labels, whole.tokens % 3, whole.loss_mask).shared(lambda tensor: tensor[:, 2:4])
    assert packed.positions is not None and packed.positions.tolist() == (ROWS[:, 2:4] % 3).tolist()


def test_a_moved_batch_takes_everything_along() -> None:
    whole = TokenBatch.from_rows(ROWS)
    moved = TokenBatch(whole.tokens, whole.labels, whole.tokens, whole.loss_mask, {"weight": whole.tokens}).to("meta")
    assert moved.positions is not None
    devices = {tensor.device.type for tensor in (moved.tokens, moved.labels, moved.positions, moved.loss_mask, moved.extra["weight"])}
    assert devices == {"meta"}
