from collections.abc import Callable
from pathlib import Path

import pytest

from tests.distributed.page_faults import SETTLING_STEPS, count_faults
from titanrun.distributed.freed_memory import find_glibc
from titanrun.distributed.rank_env import RankInfo
from titanrun.recipe.resolving.resolve import load_resolved
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.build.build_train_loop import build_train_loop
from titanrun.worker.worker_job import rendezvous


@pytest.mark.skipif(find_glibc() is None, reason="needs glibc")
def test_a_run_on_a_cpu_keeps_the_memory_of_a_step_for_the_next(run: Callable[..., Path]) -> None:
    resolved = run()
    with build_train_loop(
        load_resolved(resolved), rendezvous(resolved, RankInfo()), signals=SignalRequests()
    ):
        for _ in range(SETTLING_STEPS):
            count_faults()
        kept = count_faults()
    assert kept * 8 < count_faults()
