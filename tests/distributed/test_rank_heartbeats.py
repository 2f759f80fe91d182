"""Row B10 of the defect list: which rank does not answer, told by those that wait for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
import torch.distributed as dist

from titanrun.distributed.rank_env import RankInfo
from titanrun.distributed.rank_heartbeats import RankHeartbeats, format_silent_ranks

HOST = """
import sys, time
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                      timeout=timedelta(seconds=60))
print(store.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the store, as that of rank 0 does, and its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, int(process.stdout.readline())
    process.kill()
    process.communicate()


def join(port: int, rank: int, world_size: int = 3) -> RankHeartbeats:
    store = dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
    )
    rank_info = RankInfo(rank=rank, world_size=world_size)
    return RankHeartbeats(
        dist.PrefixStore("run", store), rank_info, beat_seconds=0.05, silence_seconds=1.0
    )


def test_a_rank_without_a_sign_of_life_is_named_and_one_that_ended_is_not(
    host: tuple[subprocess.Popen[str], int],
) -> None:
    _, port = host
    ranks = [join(port, rank, world_size=4) for rank in range(3)]
    assert ranks[0].find_silent_ranks() == []
    with ExitStack() as alive:
        for rank in ranks:
            alive.enter_context(rank)
        ranks[2].end()
        # rank 3 never gave a sign
        assert ranks[0].find_silent_ranks() == ranks[1].find_silent_ranks() == [3]


def test_a_rank_zero_that_is_stopped_is_named_though_it_holds_the_store(
    host: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = host
    with join(port, 1) as rank:
        os.kill(process.pid, signal.SIGSTOP)
        assert rank.find_silent_ranks() == [0]
        os.kill(process.pid, signal.SIGCONT)


def test_a_store_that_is_gone_accuses_nobody(host: tuple[subprocess.Popen[str], int]) -> None:
    process, port = host
    with join(port, 1) as rank:
        process.kill()
        process.wait()
        assert rank.find_silent_ranks() == []


def test_many_silent_ranks_are_named_in_short() -> None:
    assert format_silent_ranks([3]) == "rank 3 does not answer"
    assert format_silent_ranks([1, 2]) == "ranks 1, 2 do not answer"
    assert format_silent_ranks(list(range(100))) == (
        "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more do not answer"
    )
