"""Rows dealt to global batches and ranks."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from titanrun.components.data.dataloader import DataloaderExhaustedError, DistributedDataLoader
from titanrun.components.data.sample_order import shuffle_order
from titanrun.config.problems import ProblemsFound


class NumberedRows:
    """Row i is [i, i]."""

    max_token_id = 1000

    def __init__(self, count: int, fingerprint: str = "numbers") -> None:
        self.count = count
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        assert 0 <= index < self.count
        return np.array([index, index])

    def check(self) -> None:
        """Numbers do not change."""


def numbers(loader: DistributedDataLoader, batches: int) -> list[list[int]]:
    return [loader.next_samples()[:, 0].tolist() for _ in range(batches)]


@given(
    row_count=st.integers(1, 40),
    share=st.integers(1, 9),
    dp_size=st.integers(1, 8),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
)
def test_a_global_batch_is_the_same_for_every_number_of_ranks(
    row_count: int, share: int, dp_size: int, seed: int, shuffle: bool
) -> None:
    rows, size, batches = NumberedRows(row_count), share * dp_size, 5

    def loader(rank: int, ranks: int) -> DistributedDataLoader:
        return DistributedDataLoader(
            rows,
            seed=seed,
            shuffle=shuffle,
            repeat=True,
            global_batch_size=size,
            dp_rank=rank,
            dp_size=ranks,
        )

    by_rank = [numbers(loader(rank, dp_size), batches) for rank in range(dp_size)]
    together = [
        [row for rank in range(dp_size) for row in by_rank[rank][batch]] for batch in range(batches)
    ]
    assert together == numbers(loader(0, 1), batches)


@given(row_count=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 9))
def test_the_stream_is_epoch_after_epoch_without_a_gap(
    row_count: int, size: int, seed: int
) -> None:
    loader = DistributedDataLoader(
        NumberedRows(row_count), seed=seed, shuffle=True, repeat=True, global_batch_size=size
    )
    epochs = 6 * size // row_count + 1
    stream = np.concatenate(
        [shuffle_order(row_count, seed=seed, epoch=epoch)[:] for epoch in range(epochs)]
    )
    assert np.concatenate(numbers(loader, 6)).tolist() == stream[: 6 * size].tolist()


@given(batch=st.integers(0, 30), row_count=st.integers(1, 40))
def test_a_loaded_position_goes_on_with_the_next_batch(batch: int, row_count: int) -> None:
    def loader() -> DistributedDataLoader:
        return DistributedDataLoader(
            NumberedRows(row_count), seed=3, shuffle=True, repeat=True, global_batch_size=4
        )

    walked, jumped = loader(), loader()
    numbers(walked, batch)
    jumped.load_state_dict(json.loads(json.dumps(walked.state_dict())))
    assert numbers(jumped, 3) == numbers(walked, 3)


def test_every_epoch_has_each_row_once_in_an_order_of_its_own() -> None:
    orders = [shuffle_order(100, seed=0, epoch=epoch)[:].tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert orders[0] != shuffle_order(100, seed=1, epoch=0)[:].tolist()


def test_the_order_is_pinned() -> None:
    # a run that is resumed after an upgrade must see the rows it would have seen
    assert shuffle_order(12, seed=0, epoch=0)[:].tolist() == [6, 11, 3, 8, 1, 4, 5, 9, 2, 7, 10, 0]
    assert shuffle_order(12, seed=42, epoch=3)[:].tolist() == [3, 8, 4, 9, 10, 6, 5, 2, 0, 11, 7, 1]


def test_without_shuffling_rows_come_in_the_given_order() -> None:
    loader = DistributedDataLoader(
        NumberedRows(5), seed=0, shuffle=False, repeat=True, global_batch_size=2
    )
    assert numbers(loader, 4) == [[0, 1], [2, 3], [4, 0], [1, 2]]


def test_data_that_is_read_once_ends_after_the_last_full_global_batch() -> None:
    loader = DistributedDataLoader(
        NumberedRows(7), seed=0, shuffle=False, repeat=False, global_batch_size=3
    )
    assert numbers(loader, 2) == [[0, 1, 2], [3, 4, 5]]
    for _ in range(2):
        with pytest.raises(DataloaderExhaustedError):
            loader.next_samples()
    assert not issubclass(DataloaderExhaustedError, StopIteration)


def test_all_ranks_end_at_the_same_batch() -> None:
    loaders = [
        DistributedDataLoader(
            NumberedRows(6),
            seed=0,
            shuffle=False,
            repeat=False,
            global_batch_size=4,
            dp_rank=rank,
            dp_size=2,
        )
        for rank in (0, 1)
    ]
    assert [numbers(loader, 1) for loader in loaders] == [[[0, 1]], [[2, 3]]]
    for loader in loaders:
        with pytest.raises(DataloaderExhaustedError):
            loader.next_samples()


def test_a_position_in_other_data_is_refused() -> None:
    def loader(rows: NumberedRows) -> DistributedDataLoader:
        return DistributedDataLoader(rows, seed=0, shuffle=True, repeat=True, global_batch_size=2)

    state = loader(NumberedRows(9)).state_dict()
    for other, told in (
        (NumberedRows(8, "fewer"), "9 sequences then, 8 now"),
        (NumberedRows(9, "other"), "9 sequences as now, but with other token ids"),
    ):
        with pytest.raises(ProblemsFound, match=told) as caught:
            loader(other).load_state_dict(state)
        assert caught.value.exit_code == 3


def test_too_little_data_is_told_before_the_first_batch() -> None:
    with pytest.raises(
        ProblemsFound, match="the data has 2 sequences, but one global batch needs 3"
    ):
        DistributedDataLoader(
            NumberedRows(2), seed=0, shuffle=True, repeat=False, global_batch_size=3
        )
    with pytest.raises(ProblemsFound, match="no sequences"):
        DistributedDataLoader(
            NumberedRows(0), seed=0, shuffle=True, repeat=True, global_batch_size=3
        )
    assert DistributedDataLoader(
        NumberedRows(2), seed=0, shuffle=False, repeat=True, global_batch_size=3
    ).next_samples()[:, 0].tolist() == [0, 1, 0]
