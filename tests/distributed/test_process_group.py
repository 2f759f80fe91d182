from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from titanrun.config.problems import ProblemsFound
from titanrun.distributed.config import CommConfig
from titanrun.distributed.data_waits import WaitStopped
from titanrun.distributed.process_group import (
    broadcast_bool,
    create_store,
    is_peer_failure,
    is_process_group_initialized,
    main_rank_first,
    open_process_group,
    set_pg_timeout,
)
from titanrun.distributed.rank_env import RankInfo

CPU = torch.device("cpu")


def timeout_seconds() -> float:
    return dist.group.WORLD._get_backend(CPU).options._timeout.total_seconds()


def test_collectives_wait_as_long_as_the_recipe_says() -> None:
    with open_process_group(
        dist.HashStore(), RankInfo(), device=CPU, comm=CommConfig(init_timeout_seconds=7)
    ):
        assert is_process_group_initialized()
        assert timeout_seconds() == 7
        set_pg_timeout(3)
        assert timeout_seconds() == 3
        assert broadcast_bool(True) is True
    assert not is_process_group_initialized()
    assert broadcast_bool(False) is False


def test_ranks_wait_for_one_that_writes_files_longer_than_for_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the end the first rank may still write a large export, and the others wait for it."""
    timeouts: list[float] = []
    monkeypatch.setattr(dist, "barrier", lambda: timeouts.append(timeout_seconds()))
    with open_process_group(dist.HashStore(), RankInfo(), device=CPU, comm=CommConfig()):
        set_pg_timeout(3)
        dist.barrier()
    assert timeouts == [3, 24 * 3600]


def test_a_stop_on_the_first_rank_is_one_on_the_ranks_that_wait_for_it() -> None:
    store, entered = dist.HashStore(), list[int]()

    def wait_for_data(rank: int) -> str:
        try:
            with main_rank_first(store, RankInfo(rank=rank, world_size=3), "data"):
                entered.append(rank)
                raise WaitStopped("SIGTERM")
        except WaitStopped as stopped:
            return str(stopped)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(wait_for_data, range(3))) == ["SIGTERM"] * 3
    # the store, which is in its process, is there until all of them know
    assert entered == [0] and store.add("data/stopped", 0) == 2


def test_ranks_wait_for_the_first_one() -> None:
    store, entered = dist.HashStore(), list[int]()

    def open_data(rank: int) -> None:
        with main_rank_first(store, RankInfo(rank=rank, world_size=2), "data"):
            entered.append(rank)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(open_data, [1, 0]))
    assert entered == [0, 1]


def test_a_place_without_an_address_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ProblemsFound, match="rank 1 of 2 cannot reach the other ranks"):
        create_store(RankInfo(rank=1, world_size=2), timeout_seconds=1)


def test_the_loss_of_a_peer_is_told_from_faults_of_ones_own() -> None:
    assert is_peer_failure(
        RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1")
    )
    assert is_peer_failure(dist.DistStoreError("wait timeout"))
    assert not is_peer_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
