"""Order of streams, against the datasets library as torchtitan uses it, and formulas."""

from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node
from hypothesis import given
from hypothesis import strategies as st

from tests.components.data.lane_streams import Ranks, write_numbered
from titanrun.components.data.config import MixtureDatasetConfig, TextDatasetConfig
from titanrun.components.data.lane_mixture import MixturePattern, build_mixture_pattern
from titanrun.components.data.lane_plan import assign_files, find_lanes, find_window_lane
from titanrun.components.data.mixture_counts import interleave_sources
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound


@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_rows_are_those_of_torchtitans_loader(
    dp_size: int, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write_numbered(tmp_path, [30, 25, 28, 33, 40, 22, 31, 29])
    config = TextDatasetConfig(path=str(tmp_path), streaming=True, shuffle=False)
    ours = Ranks(config, tokenizer, dp_size, lanes=dp_size, batch=2 * dp_size)
    # more than two passes; torchtitan's loader shuffles the files from the second one on
    batches = np.stack(ours.batches(150)).reshape(150, dp_size, 2, 65)
    for rank in range(dp_size):
        stream = split_dataset_by_node(
            datasets.load_dataset(
                "json", data_files=str(tmp_path / "*.gz"), split="train", streaming=True
            ),
            rank,
            dp_size,
        )
        ids: list[int] = []
        while len(ids) < 300 * 65:
            for sample in stream:
                ids += tokenizer.encode(sample["text"], add_bos=True, add_eos=True)
        rows = np.array(ids[: 300 * 65]).reshape(150, 2, 65)
        assert np.array_equal(batches[:, rank], rows)


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=70),
    num_lanes=st.integers(1, 16),
    epoch=st.integers(0, 3),
    seed=st.none() | st.integers(0, 5),
)
def test_each_file_is_in_one_lane_or_in_all(
    sizes: list[int], num_lanes: int, epoch: int, seed: int | None
) -> None:
    lanes = [
        assign_files(sizes, lane=lane, num_lanes=num_lanes, epoch=epoch, seed=seed)
        for lane in range(num_lanes)
    ]
    assert len({lane.striped for lane in lanes}) == 1
    assert len({len(lane.whole) for lane in lanes}) == 1
    assert sorted([*lanes[0].striped, *(file for lane in lanes for file in lane.whole)]) == list(
        range(len(sizes))
    )
    if num_lanes > 1:
        mean = sum(sizes) / len(sizes)
        assert all(number in lanes[0].striped for number, s in enumerate(sizes) if s > 2 * mean)


@given(num_lanes=st.integers(1, 40), counts=st.lists(st.integers(0, 90), min_size=1, max_size=9))
def test_lanes_take_turns_at_the_windows_of_all_striped_files(
    num_lanes: int, counts: list[int]
) -> None:
    lanes = [
        find_window_lane(sum(counts[:stripe]), place, num_lanes)
        for stripe, count in enumerate(counts)
        for place in range(count)
    ]
    assert lanes == [number % num_lanes for number in range(sum(counts))]


@given(num_ranks=st.integers(1, 32), num_lanes=st.integers(1, 32), share=st.integers(1, 4))
def test_a_rank_runs_the_lanes_of_its_slots(num_ranks: int, num_lanes: int, share: int) -> None:
    batch = share * num_ranks * num_lanes
    for rank in range(num_ranks):
        slots = range(rank * batch // num_ranks, (rank + 1) * batch // num_ranks)
        assert {slot * num_lanes // batch for slot in slots} == set(
            find_lanes(rank, num_ranks, num_lanes)
        )


def test_a_mixture_counts_the_rows_of_each_source_in_each_lane() -> None:
    pattern = MixturePattern(interleave_sources([50, 30, 17, 3]), 7)
    for lane in range(7):
        seen = [0, 0, 0, 0]
        for row in range(450):
            source = pattern.find_source(lane, row)
            assert pattern.count_before(lane, row, source) == seen[source]
            seen[source] += 1
        assert all(count >= 4 * share for count, share in zip(seen, (50, 30, 17, 3), strict=True))


def test_an_indexed_source_of_a_mixture_is_read_once_an_epoch_and_shares_are_exact(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    from tests.components.data.test_lane_loader import configure

    config = configure("mixture", tmp_path)
    ranks = Ranks(config, tokenizer, 2, lanes=4, batch=20, folder=tmp_path)
    batches = np.concatenate(ranks.batches(100))
    table = np.load(tmp_path / "rows.npy")
    indexed = [row[0] for row in batches if row.shape == (3, 65) and (row[0] == table).all(1).any()]
    # 400 of 2000 rows: ten epochs of 40
    assert len(indexed) == pytest.approx(400, abs=8)
    epochs = np.array(indexed[:400]).reshape(10, 40, 65)
    for lanes in (epochs,):
        counts = np.unique(lanes.reshape(400, 65), axis=0, return_counts=True)[1]
        assert counts.min() >= 9 and counts.max() <= 11 and len(counts) == 40


def test_a_weight_that_no_lane_would_meet_is_told() -> None:
    sources = [
        {"dataset": {"name": "tokens", "path": "a.npy"}, "weight": weight} for weight in (1, 1e-6)
    ]
    with pytest.raises(ProblemsFound, match="weight 1e-06 is less than 1 sequence of 65,536") as f:
        build_mixture_pattern(MixtureDatasetConfig.model_validate({"sources": sources}), 4)
    assert f.value.problems[0].path == ("sources", 1, "weight")
