"""Processes that run lanes give the batches of the rank itself, whatever happens to them."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.components.data.conftest import ByteTokenizer
from tests.components.data.lane_streams import Ranks, same, write_numbered
from tests.components.data.test_lane_loader import KINDS, configure, text
from titanrun.components.data import dataloader_workers, lane_processes
from titanrun.components.data.lane_processes import LaneProcesses
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer
from titanrun.config.problems import ProblemsFound


@pytest.fixture
def opened() -> Iterator[list[Ranks]]:
    """Loaders that are closed in the end."""
    ranks: list[Ranks] = []
    yield ranks
    for one in ranks:
        one.close()


def processes_of(ranks: Ranks) -> list[Any]:
    """The processes of the first rank."""
    runner: Any = ranks.loaders[0]._runner
    assert isinstance(runner, LaneProcesses)
    return [worker.process for worker in runner._workers]


@pytest.mark.parametrize(
    "kind",
    ["windows", "mixture"]
    + [
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in KINDS
        if kind not in ("windows", "mixture")
    ],
)
def test_batches_are_those_of_the_rank_itself_for_any_number_of_processes(
    kind: str, tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    config, words = configure(kind, tmp_path), kind in ("chat", "preference")
    used = build_tiny_tokenizer(TinyTokenizerConfig()) if words else tokenizer
    options: Any = {"folder": tmp_path, "length": 129 if words else 65}
    alone = Ranks(config, used, **options).batches(60)
    for num_workers, dp_size in ((1, 2), (2, 1), (3, 1)):
        ranks = Ranks(config, used, dp_size, num_workers=num_workers, prefetch=4, **options)
        opened.append(ranks)
        assert same(ranks.batches(30), alone[:30])
        # what was read ahead is no part of the state
        other = Ranks(config, used, **options)
        other.load(ranks.state())
        assert same(other.batches(5), alone[30:35])
        ranks.load(Ranks(config, used, **options).state())
        assert same(ranks.batches(3), alone[:3])
        assert len(processes_of(ranks)) == min(num_workers, 4 // dp_size)


def test_processes_that_do_not_end_are_killed_together(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    """As those that wait for a server. A run that shall stop waited 10 s for each of them."""
    write_numbered(tmp_path, [60] * 8)
    ranks = Ranks(text(tmp_path), tokenizer, num_workers=4)
    opened.append(ranks)
    ranks.batches(1)
    processes = processes_of(ranks)
    assert len(processes) == 4
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    ranks.close()
    assert time.monotonic() - started < 20
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 4


def test_a_process_that_is_killed_at_any_step_is_replaced(
    tmp_path: Path,
    tokenizer: Tokenizer,
    opened: list[Ranks],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dataloader_workers, "MAX_WORKER_DEATHS", 12)
    write_numbered(tmp_path, [60] * 8)
    alone = Ranks(text(tmp_path), tokenizer).batches(15)
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=2))
    for step in range(12):
        assert same([ranks.next()], alone[step : step + 1])
        # amid reading ahead, or with what it has read ahead delivered
        end = time.monotonic() + 60
        while step % 3 == 2 and answers_of(ranks, step % 2) == 0:
            assert time.monotonic() < end
            time.sleep(0.01)
        victim = processes_of(ranks)[step % 2]
        victim.kill()
        victim.wait()
    assert same(ranks.batches(3), alone[12:])
    assert caplog.text.count(" was killed by SIGKILL; starting a replacement") == 12


def test_a_batch_that_was_read_ahead_waits_for_no_process(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    write_numbered(tmp_path, [60] * 8)
    # a batch is larger than what a connection holds
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=1, length=8193))
    expected = Ranks(text(tmp_path), tokenizer, length=8193).batches(2)
    first, (process,) = ranks.next(), processes_of(ranks)
    end = time.monotonic() + 60
    while answers_of(ranks) == 0:
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    alarm = threading.Timer(20, process.send_signal, [signal.SIGCONT])
    alarm.start()
    second = ranks.next()
    assert not alarm.finished.is_set(), "the rank waited until the process went on"
    alarm.cancel()
    process.send_signal(signal.SIGCONT)
    assert same([first, second], expected)


def test_as_many_batches_are_read_ahead_as_the_setting_says(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    write_numbered(tmp_path, [60] * 8)
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=1, prefetch=3))
    for _ in range(3):
        ranks.next()
        end = time.monotonic() + 60
        while answers_of(ranks) < 3:
            assert time.monotonic() < end, "nobody asked for them"
            time.sleep(0.01)


def answers_of(ranks: Ranks, process: int = 0) -> int:
    """Return how many batches of a process have arrived."""
    runner: Any = ranks.loaders[0]._runner
    count: int = runner._workers[process].connection.num_answers
    return count


def test_the_fourth_death_ends_the_run(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    write_numbered(tmp_path, [60] * 8)
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=1, prefetch=1))
    for _ in range(4):
        ranks.next()
        process = processes_of(ranks)[0]
        process.kill()
        # until then its connection is open, and the rank may ask it for the next batch
        process.wait()
    with pytest.raises(ProblemsFound, match="was killed by SIGKILL, the 4th that died"):
        ranks.batches(3)


def test_processes_that_die_at_their_start_end_the_run(
    tmp_path: Path, opened: list[Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process is sent first is larger than what a connection holds."""
    monkeypatch.setattr(lane_processes, "ENTRY", "import os; os._exit(1)")
    write_numbered(tmp_path, [60] * 8)
    tokenizer: Any = ByteTokenizer()
    tokenizer.words = b"x" * 2**22
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=2))
    with pytest.raises(ProblemsFound, match="ended with code 1, the 4th that died"):
        ranks.next()


def test_problems_and_warnings_of_a_process_are_told_by_the_rank(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    write_numbered(tmp_path, [60] * 4, suffix=".jsonl")
    with (tmp_path / "part-002.jsonl").open("a") as file:
        file.write('{"body": 1}\n')
    config = text(tmp_path, packing="best_fit", too_long="drop")
    opened.append(ranks := Ranks(config, tokenizer, num_workers=2, length=50))
    with caplog.at_level(logging.INFO), pytest.raises(ProblemsFound) as found:
        ranks.batches(200)
    (problem,) = found.value.problems
    assert "part-002.jsonl' record 61 has no column 'text'; it has: body" in problem.message
    assert problem.path == ("column",)
    assert "longer than a sequence of 50 tokens" in caplog.text


def test_a_process_imports_no_torch_and_ends_with_the_rank(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    code = (
        "import sys, titanrun.components.data.lane_process, "
        "titanrun.components.data.window_encoders, titanrun.components.tokenizers.huggingface; "
        "print(sorted({'torch', 'datasets', 'transformers', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert found.stdout == b"[]\n"
    write_numbered(tmp_path, [60] * 4)
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=2))
    ranks.next()
    processes = processes_of(ranks)
    # a scheduler sends these to all processes of a run
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    ranks.batches(3)
    time.sleep(0.2)
    assert [process.poll() for process in processes] == [None, None]
    ranks.close()
    assert [process.returncode for process in processes] == [0, 0]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has batch processes")
def test_a_process_that_wakes_up_does_not_take_the_core_of_the_rank(
    tmp_path: Path, tokenizer: Tokenizer, opened: list[Ranks]
) -> None:
    write_numbered(tmp_path, [60] * 4)
    opened.append(ranks := Ranks(text(tmp_path), tokenizer, num_workers=1))
    ranks.next()
    (process,) = processes_of(ranks)
    # SCHED_BATCH of sched(7): a thread of it preempts no normal one when it wakes up
    assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
