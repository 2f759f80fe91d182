"""The order of very many samples: a permutation, as even as a random one, that needs no memory."""

import tracemalloc
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.keyed_order import KeyedOrder, mix_bits
from titanrun.components.data.sample_order import MAX_SORTED, shuffle_order

# 2 billion sequences: sorted random keys of them would need 34 GB
LARGE = 2**31 + 12_345


class NumberedSamples:
    """Very many samples, each of which is its index."""

    fingerprint, max_token_id = "numbers", 2**31

    def __len__(self) -> int:
        return LARGE

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return np.full(3, index)

    def check(self) -> None:
        """Nothing changes."""


def order_of(count: int, seed: int) -> KeyedOrder:
    return KeyedOrder(count, np.random.PCG64(seed).random_raw(4))


@given(count=st.integers(1, 3000), seed=st.integers(0, 99))
def test_every_sample_comes_once(count: int, seed: int) -> None:
    order = order_of(count, seed)
    assert np.sort(order[:]).tolist() == list(range(count))
    assert [int(order[place]) for place in range(0, count, 97)] == order[::97].tolist()


@pytest.mark.parametrize("count", [MAX_SORTED + 1, LARGE, 2**40 + 3])
def test_places_of_very_many_samples_are_not_shared(count: int) -> None:
    order = shuffle_order(count, seed=5, epoch=2)
    assert isinstance(order, KeyedOrder) and len(order) == count
    spans = [order[start : start + 2**18] for start in (0, count // 3, count - 2**18)]
    found = np.concatenate(spans)
    assert found.min() >= 0 and found.max() < count
    assert len(np.unique(found)) == 3 * 2**18


@pytest.mark.slow
def test_every_one_of_very_many_samples_comes_once() -> None:
    count = MAX_SORTED + 1
    order, found = shuffle_order(count, seed=0, epoch=0), np.zeros(count, dtype=bool)
    for start in range(0, count, 2**22):
        found[order[start : start + 2**22]] = True
    assert found.all()


def test_bits_are_those_of_splitmix64() -> None:
    # its first numbers for seed 1234567, as published with the generator
    seed, step = 1234567, 0x9E3779B97F4A7C15
    states = [(seed + number * step) % 2**64 for number in range(1, 6)]
    assert mix_bits(np.array(states, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_samples_are_as_far_apart_as_random_ones() -> None:
    found = order_of(LARGE, 1)[: 2**18].astype(np.float64)
    # distances of two random numbers below n: mean n / 3, variance n * n / 18
    for distances in (np.abs(np.diff(found)), np.abs(found - np.arange(2**18) - LARGE / 2)):
        expected, deviation = (
            (LARGE / 3, LARGE / np.sqrt(18))
            if distances.size < 2**18
            else (LARGE / 4, LARGE / np.sqrt(48))
        )
        assert abs(distances.mean() - expected) < 5 * deviation / np.sqrt(len(distances))
    # as many in each of 256 ranges: chi-squared has mean 255 and variance 510
    counts = np.bincount((found * 256 // LARGE).astype(np.int64), minlength=256)
    chi_squared = float((((counts - 2**10) ** 2) / 2**10).sum())
    assert abs(chi_squared - 255) < 5 * np.sqrt(510)


def test_seed_epoch_and_key_make_another_order_and_no_seed_keeps_the_given_one() -> None:
    chosen = [
        {"seed": 0, "epoch": 0},
        {"seed": 1, "epoch": 0},
        {"seed": 0, "epoch": 1},
        {"seed": 0, "epoch": 0, "key": (1,)},
    ]
    firsts = [shuffle_order(LARGE, **one)[:64].tolist() for one in chosen]  # type: ignore[arg-type]
    assert all(first != other for first in firsts for other in firsts if first is not other)
    assert shuffle_order(LARGE, seed=0, epoch=0)[:64].tolist() == firsts[0]
    assert shuffle_order(LARGE, seed=None, epoch=0)[LARGE - 2 :].tolist() == [LARGE - 2, LARGE - 1]


def test_the_order_is_pinned() -> None:
    # a run that is resumed after an upgrade must see the rows it would have seen
    assert shuffle_order(LARGE, seed=0, epoch=0)[:4].tolist() == [
        1632816536,
        777325498,
        1108089861,
        31508358,
    ]


def test_ranks_read_very_many_samples_without_memory_for_their_order() -> None:
    def read(dp_rank: int, dp_size: int) -> list[list[int]]:
        loader = DistributedDataLoader(
            NumberedSamples(),
            seed=3,
            shuffle=True,
            repeat=True,
            global_batch_size=8,
            dp_rank=dp_rank,
            dp_size=dp_size,
        )
        # the end of the first epoch is within the second batch
        loader.load_state_dict({"fingerprint": "numbers", "rows_read": LARGE - 12})
        return [loader.next_samples()[:, 0].tolist() for _ in range(3)]

    tracemalloc.start()
    whole = read(0, 1)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    shares = [read(rank, 4) for rank in range(4)]
    assert [list(chain(*(share[step] for share in shares))) for step in range(3)] == whole
    last, first = (shuffle_order(LARGE, seed=3, epoch=epoch) for epoch in (0, 1))
    assert list(chain(*whole)) == [*last[LARGE - 12 :].tolist(), *first[:12].tolist()]
