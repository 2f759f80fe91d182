"""What ranks tell each other while one of them waits for data."""

from pathlib import Path

import pytest
import torch.distributed as dist

from titanrun.distributed.data_waits import wait_for_next_step
from titanrun.training.signal_requests import SignalRequests
from titanrun.worker.rank_main import find_stop_in_wait
from titanrun.worker.status_file import StatusFile
from titanrun.worker.wait_board import WaitBoard, report_data_waits


@pytest.mark.parametrize("is_main_rank", [True, False])
def test_a_stop_of_any_rank_ends_the_waits_of_others(tmp_path: Path, is_main_rank: bool) -> None:
    store, signals = dist.HashStore(), SignalRequests()
    status = StatusFile(tmp_path / "status.json", is_main_rank=is_main_rank)
    other = WaitBoard(store)
    assert find_stop_in_wait(signals, status, other) is None
    with report_data_waits(store, status, lambda: "SIGTERM"):
        store.wait(["waits/stop"])
    assert find_stop_in_wait(signals, status, other) == "SIGTERM"
    status.record_step(1)
    # within a step, only one rank may wait
    assert find_stop_in_wait(signals, status, other) is None
    with wait_for_next_step():
        assert find_stop_in_wait(signals, status, other) == "SIGTERM"
    assert find_stop_in_wait(signals, status, other) is None


def test_a_single_rank_needs_no_board(tmp_path: Path) -> None:
    signals, status = SignalRequests(), StatusFile(tmp_path / "status.json")
    board = WaitBoard(None)
    board.share_stop("SIGTERM")
    assert board.find_stop() is None
    signals.stop_signal = "SIGINT"
    assert find_stop_in_wait(signals, status, board) == "SIGINT"
