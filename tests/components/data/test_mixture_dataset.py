"""Rows of several datasets in given shares."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from titanrun.components.data.config import MixtureDatasetConfig
from titanrun.components.data.dataloader import DistributedDataLoader
from titanrun.components.data.mixture_dataset import MixtureDataset, build_mixture_dataset
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import Problem, ProblemsFound


@pytest.fixture
def given(tmp_path: Path) -> list[Path]:
    """Three files of 10, 20 and 40 rows; the first id of a row says which row of which file it
    is."""
    files = []
    for number, count in enumerate((10, 20, 40)):
        files.append(tmp_path / f"{number}.npy")
        np.save(
            files[-1], np.arange(count)[:, None] + 1000 * number + np.zeros((1, 5), dtype=np.int32)
        )
    return files


def mixed(files: list[Path], *sources: dict[str, Any]) -> MixtureDataset:
    listed = [
        {"dataset": {"name": "tokens", "path": str(file)}, **source}
        for file, source in zip(files, sources, strict=False)
    ]
    config = MixtureDatasetConfig.model_validate_json(json.dumps({"sources": listed}))
    return build_mixture_dataset(
        config, tokenizer=None, sample_length=5, cache_folder=files[0].parent / "cache"
    )


def firsts(rows: MixtureDataset) -> list[int]:
    return [int(rows[index][0]) for index in rows.compute_epoch_order(0, seed=None).tolist()]


def test_weights_are_shares_evenly_spread_and_every_row_is_read(given: list[Path]) -> None:
    rows = mixed(given, {"weight": 3}, {"weight": 0.5}, {"weight": 0.5})
    read = firsts(rows)
    # 40 rows at a share of an eighth
    assert rows.epoch_size == 320 and set(read) == {
        *range(10),
        *range(1000, 1020),
        *range(2000, 2040),
    }
    assert [sum(token // 1000 == source for token in read) for source in range(3)] == [240, 40, 40]
    for first in range(0, 320, 8):
        assert sorted(token // 1000 for token in read[first : first + 8]) == [0] * 6 + [1, 2]
    assert [token for token in read if token >= 2000] == list(range(2000, 2040))


@pytest.mark.parametrize(
    ("sources", "counts"),
    [
        # once over the second: 20 rows of each
        (({}, {"epochs": 1.0}, {}), [20, 20, 20]),
        (({"epochs": 0.5}, {"epochs": 1.0}, {}), [5, 5, 5]),
        (({"epochs": 4.0}, {"epochs": 1.5}, {"weight": 2.0}), [30, 30, 60]),
        (({}, {"max_rows": 3}, {"max_rows": 5}), [10, 10, 10]),
    ],
)
def test_a_pass_ends_where_a_source_has_been_read_often_enough(
    sources: Any, counts: list[int], given: list[Path]
) -> None:
    read = firsts(mixed(given, *sources))
    assert [sum(token // 1000 == source for token in read) for source in range(3)] == counts
    for number, source in enumerate(sources):
        most = source.get("max_rows", 100)
        assert max(token % 1000 for token in read if token // 1000 == number) < most


def test_a_mixture_that_is_shuffled_has_its_shares_in_every_pass(given: list[Path]) -> None:
    rows = mixed(given, {"weight": 3}, {"weight": 1})
    loader = DistributedDataLoader(
        rows, seed=1, shuffle=True, repeat=True, global_batch_size=rows.epoch_size
    )
    passes = [loader.next_samples()[:, 0].tolist() for _ in range(2)]
    assert passes[0] != passes[1] and sorted(passes[0]) == sorted(passes[1]) == sorted(firsts(rows))


def test_other_weights_are_other_data(given: list[Path]) -> None:
    prints = {
        mixed(given, *sources).fingerprint
        for sources in (({}, {}), ({"weight": 2}, {}), ({"max_rows": 9}, {}), ({},))
    }
    assert len(prints) == 4


def test_rows_with_marks_and_rows_without_go_together(
    given: list[Path], tokenizer: Tokenizer
) -> None:
    (given[0].parent / "a.jsonl").write_text('{"text": "ab"}\n{"text": "c"}\n')
    documents = {"name": "text", "path": str(given[0].parent / "a.jsonl"), "packing": "best_fit"}
    sources = [{"dataset": documents}, {"dataset": {"name": "tokens", "path": str(given[0])}}]
    config = MixtureDatasetConfig.model_validate_json(json.dumps({"sources": sources}))
    assert config.needs_tokenizer and config.restarts_positions
    rows = build_mixture_dataset(
        config, tokenizer=tokenizer, sample_length=5, cache_folder=given[0].parent / "cache"
    )
    assert {rows[index].shape for index in range(len(rows))} == {(3, 5)}
    plain = next(rows[index] for index in range(len(rows)) if rows.get_source_index(index) == 1)
    assert plain[1:].tolist() == [[1] * 5, [0, 1, 2, 3, 4]]


def problem_of(given: list[Path], *sources: dict[str, Any]) -> Problem:
    with pytest.raises(ProblemsFound) as caught:
        mixed(given, *sources)
    return caught.value.problems[0]


def test_what_is_wrong_with_a_source_is_told_at_its_place(given: list[Path]) -> None:
    given[1].unlink()
    assert problem_of(given, {}, {}).path == ("sources", 1, "dataset", "path")
    assert problem_of(given).path == ("sources",)
    problem = problem_of([given[0], given[2]], {"epochs": 1.0}, {"weight": 1e-9})
    assert (
        problem.path == ("sources", 1, "weight") and "none of the 10 sequences" in problem.message
    )


def test_huge_weights_have_their_shares(given: list[Path]) -> None:
    huge = mixed(given, {"weight": 1e308}, {"weight": 1.5e308}, {"weight": 0.5e308})
    plain = mixed(given, {"weight": 2.0}, {"weight": 3.0}, {"weight": 1.0})
    assert firsts(huge) == firsts(plain)


@pytest.mark.parametrize(
    ("sources", "key", "message"),
    [
        (({}, {"weight": 1e-320}), "weight", "makes an epoch of the mixture inf sequences long"),
        (({}, {"weight": 1e-12}), "weight", "weight 1e-12 makes an epoch of the mixture 2e+13 "),
        (({}, {"epochs": 1e308}), "epochs", "epochs 1e+308 makes an epoch of the mixture inf "),
    ],
)
def test_an_epoch_that_no_memory_holds_is_a_problem(
    given: list[Path], sources: tuple[dict[str, float], ...], key: str, message: str
) -> None:
    """Also one that no number holds: these were ValueErrors, OverflowErrors and MemoryErrors."""
    problem = problem_of(given, *sources)
    assert problem.path == ("sources", 1, key) and message in problem.message


def test_a_source_may_have_more_epochs_than_are_ever_read(given: list[Path]) -> None:
    rows = mixed(given, {"epochs": 1e308}, {"epochs": 2.0})
    assert len(firsts(rows)) == 80


def test_a_source_that_changes_is_noticed(given: list[Path]) -> None:
    rows = mixed(given, {}, {})
    rows.check()
    np.save(given[1], np.zeros((20, 5), dtype=np.int32))
    with pytest.raises(ProblemsFound) as caught:
        rows.check()
    assert caught.value.problems[0].path == ("sources", 1, "dataset", "path")


def read_stream(rows: MixtureDataset, count: int, **options: Any) -> list[int]:
    """Return the first ids of `count` rows, read in global batches of 4 by one rank."""
    loader = DistributedDataLoader(
        rows, global_batch_size=4, **{"seed": 1, "shuffle": True, "repeat": True, **options}
    )
    read: list[int] = []
    while len(read) < count and loader.has_next():
        read += loader.next_samples()[:, 0].tolist()
    return read


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_source_is_read_whole_before_a_row_of_it_is_read_again(
    shuffle: bool, given: list[Path]
) -> None:
    """Row A1 of the defect list: every pass took the same first rows of a source.

    The oracle counts the reads of each row after every batch, over passes of 20 rows of which the
    file of 40 rows has 10.
    """
    rows = mixed([given[0], given[2]], {"max_rows": 5, "epochs": 2.0}, {"weight": 1.0})
    read = read_stream(rows, 400, shuffle=shuffle)
    of_large = [token for token in read if token >= 2000]
    for end in range(len(of_large) + 1):
        counted = [of_large[:end].count(2000 + row) for row in range(40)]
        assert max(counted) - min(counted) <= 1
    passes = [of_large[start : start + 40] for start in range(0, 320, 40)]
    assert len({tuple(order) for order in passes}) == (8 if shuffle else 1)


def test_sources_of_one_size_have_orders_of_their_own(given: list[Path]) -> None:
    np.save(given[1], np.load(given[2]) + 1000)
    for epoch in range(2):
        rows = mixed(given[1:], {}, {})
        read = [int(rows[index][0]) for index in rows.compute_epoch_order(epoch, seed=1)]
        orders = [[token % 1000 for token in read if token // 1000 == one] for one in (2, 3)]
        assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))
        assert orders[0] != orders[1]


def test_epochs_of_a_source_count_over_the_whole_run(given: list[Path]) -> None:
    """Row A1 of the defect list: `epochs` counted per pass and was exceeded with `repeat`."""
    rows = mixed(given, {"epochs": 1.5, "weight": 3.0}, {"epochs": 2.0}, {})
    read = read_stream(rows, 1000)
    counted = {token: read.count(token) for token in {*read}}
    assert [sum(counted.get(row, 0) for row in range(10))] == [15]
    assert all(counted.get(row, 0) in (1, 2) for row in range(10))
    assert {counted.get(1000 + row) for row in range(20)} == {2}
    # what the two give up goes to the third
    assert len(read) == 1000 and sum(counted.get(2000 + row, 0) for row in range(40)) == 945
    # a pass is 15 + 5 + 5 rows; in the second the two others share equally
    assert [sum(token // 1000 == 1 for token in read[:25]), rows.epoch_size] == [5, 25]
    assert sum(token // 1000 == 1 for token in read_stream(rows, 52)[25:50]) in (12, 13)


def test_a_mixture_ends_when_all_its_sources_have_been_read_often_enough(
    given: list[Path],
) -> None:
    rows = mixed(given, {"epochs": 2.0}, {"epochs": 1.0}, {"max_rows": 4, "epochs": 1.0})
    read = read_stream(rows, 1000)
    assert len(read) == 44
    assert [read.count(row) for row in (*range(10), *range(1000, 1020))] == [2] * 10 + [1] * 20
    assert [read.count(2000 + row) for row in range(5)] == [1, 1, 1, 1, 0]


@pytest.mark.parametrize("dp_size", [2, 4])
def test_the_passes_of_a_mixture_do_not_depend_on_ranks_or_restarts(
    dp_size: int, given: list[Path]
) -> None:
    sources: tuple[dict[str, Any], ...] = ({"epochs": 1.5}, {"max_rows": 7}, {"weight": 0.7})

    def open_loader(dp_rank: int, ranks: int) -> DistributedDataLoader:
        return DistributedDataLoader(
            mixed(given, *sources),
            seed=3,
            shuffle=True,
            repeat=True,
            global_batch_size=8,
            dp_rank=dp_rank,
            dp_size=ranks,
        )

    whole = open_loader(0, 1)
    expected = [whole.next_samples()[:, 0].tolist() for _ in range(40)]
    by_rank = [open_loader(rank, dp_size) for rank in range(dp_size)]
    for step in range(40):
        together = [token for one in by_rank for token in one.next_samples()[:, 0].tolist()]
        assert together == expected[step]
        again = open_loader(0, 1)
        again.load_state_dict(by_rank[0].state_dict())
        if step < 39:
            assert again.next_samples()[:, 0].tolist() == expected[step + 1]


def test_a_mixture_in_a_mixture_keeps_its_shares(given: list[Path]) -> None:
    tokens = [{"name": "tokens", "path": str(file)} for file in given]
    inner = {
        "name": "mixture",
        "sources": [{"dataset": tokens[0]}, {"dataset": tokens[1], "weight": 3.0}],
    }
    config = MixtureDatasetConfig.model_validate(
        {"sources": [{"dataset": inner}, {"dataset": tokens[2], "epochs": 1.0}]}
    )
    rows = build_mixture_dataset(
        config, tokenizer=None, sample_length=5, cache_folder=given[0].parent / "cache"
    )
    read = read_stream(rows, 80)
    assert len(read) == 80
    # an inner pass is 10 + 30 rows, and the outer one has it once
    assert [sum(token // 1000 == source for token in read) for source in range(3)] == [10, 30, 40]
