"""Processes that read rows ahead give what the rank would have read itself."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from titanrun.components.data.dataloader import (
    DistributedDataLoader,
    create_dataloader_workers,
)
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.config.problems import Problem, ProblemsFound

TWO = DataLoaderConfig(num_workers=2)


class ToldRows:
    """Rows that say who read them: the number and the process."""

    fingerprint = "told"
    max_token_id = 1000

    def __init__(self, *, bad: int | None = None) -> None:
        self._on_bad_record = bad

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        if index == self._on_bad_record:
            raise ProblemsFound(
                [Problem("data", f"row {index} is torn", ("path",), None, hint="mend it")]
            )
        return np.array([index, os.getpid()])

    def check(self) -> None:
        pass


def loader(
    processes: DataLoaderConfig | None, rows: Any = None, **options: Any
) -> DistributedDataLoader:
    rows = rows or ToldRows()
    return DistributedDataLoader(
        rows,
        seed=3,
        **{"shuffle": True, "repeat": True, "global_batch_size": 4, **options},
        config=processes,
    )


def dealt(loader: DistributedDataLoader, count: int) -> list[list[int]]:
    return [loader.next_samples()[:, 0].tolist() for _ in range(count)]


@pytest.mark.parametrize("stay", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_batches_do_not_depend_on_who_reads_them_and_a_resume_goes_on(stay: bool) -> None:
    config = DataLoaderConfig(num_workers=2, prefetch_factor=3, persistent_workers=stay)
    own, theirs, resumed = loader(None), loader(config), loader(config)
    expected = dealt(own, 12)
    assert dealt(theirs, 7) == expected[:7]
    # in the middle of what was read ahead
    resumed.load_state_dict(theirs.state_dict())
    assert dealt(resumed, 5) == dealt(theirs, 5) == expected[7:]
    theirs.load_state_dict(resumed.state_dict() | {"rows_read": 8})
    assert dealt(theirs, 3) == expected[2:5] and theirs.last_indices() == expected[4]
    theirs.close()
    resumed.close()


@pytest.mark.parametrize(("stay", "processes"), [(True, 2), (False, 6)])
def test_processes_stay_when_the_data_starts_again_if_they_shall(
    stay: bool, processes: int
) -> None:
    reading = loader(DataLoaderConfig(num_workers=2, persistent_workers=stay))
    readers = {int(reading.next_samples()[0, 1]) for _ in range(15)}
    reading.close()
    assert len(readers) == processes and os.getpid() not in readers


def test_data_that_is_read_once_ends_as_without_processes() -> None:
    reading = loader(TWO, repeat=False)
    assert dealt(reading, 5) == dealt(loader(None, repeat=False), 5) and not reading.has_next()
    reading.close()


class NotedRows(ToldRows):
    """Rows that leave a file for each that was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        (self._folder / str(index)).touch()
        return super().__getitem__(index)


@pytest.mark.parametrize(("ahead", "read"), [(None, 5), (3, 7)])
def test_as_many_batches_are_read_ahead_as_wanted(
    ahead: int | None, read: int, tmp_path: Path
) -> None:
    config = DataLoaderConfig(num_workers=2, prefetch_factor=ahead)
    processes = create_dataloader_workers(NotedRows(tmp_path), lambda place: [place], config)
    assert processes is not None
    processes.get_batch(0)
    processes.get_batch(1)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < read and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(int(file.name) for file in tmp_path.iterdir()) == list(range(read))
    processes.close()


def test_what_is_wrong_with_a_row_is_told_as_it_is() -> None:
    reading = loader(TWO, ToldRows(bad=9), shuffle=False)
    dealt(reading, 2)
    with pytest.raises(ProblemsFound) as caught:
        reading.next_samples()
    reading.close()
    assert [problem.message for problem in caught.value.problems] == ["row 9 is torn"]


def test_a_process_that_is_killed_is_replaced_and_no_row_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading, expected = loader(TWO), dealt(loader(None), 8)
    first = reading.next_samples()
    with caplog.at_level(logging.WARNING):
        os.kill(int(first[0, 1]), signal.SIGKILL)
        got = [first[:, 0].tolist(), *dealt(reading, 7)]
    reading.close()
    assert got == expected
    assert (
        f"data loading process {first[0, 1]} was killed by SIGKILL; starting a replacement"
        in caplog.text
    )


class DeadlyRows(ToldRows):
    """Rows that kill who reads them."""

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        os._exit(9)


def test_processes_that_die_again_and_again_end_the_run() -> None:
    reading = loader(TWO, DeadlyRows())
    with pytest.raises(ProblemsFound, match="ended with code 9, the 4th that died"):
        reading.next_samples()
    reading.close()


ORPHANS = """
import os
from titanrun.components.data.dataloader_config import DataLoaderConfig
from tests.components.data.test_dataloader_workers import loader
reading = loader(DataLoaderConfig(num_workers=2))
print(*{int(reading.next_samples()[0, 1]) for _ in range(4)}, flush=True)
os.kill(os.getpid(), 9)
"""


def test_processes_do_not_outlive_a_rank_that_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS], capture_output=True, text=True, check=False
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 30
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
