"""Streams over late data and kills: ranks wait together, and no token is lost or repeated."""

import json
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.components.data.fragile_server import serve_files
from tests.components.data.lane_streams import write_numbered
from tests.faults import remote_seams
from tests.faults.conftest import STEPS, Run, digests, said
from tests.faults.processes import work, work_together
from titanrun.components.metrics.spec.metrics_file import read_metrics

TEXT = "".join(json.dumps({"text": f"<{n}> " + "word " * (n % 40)}) + "\n" for n in range(600))
SHORT = ("comm.train_timeout_seconds=6", "guard.step_timeout_seconds=6")
NEVER = 10**9
# after some steps
SLOW_READ = 14


def settings(path: str, *, retry_timeout: str) -> list[str]:
    dataset = {"name": "text", "path": path, "streaming": True, "window": 2}
    return [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        f"training.dataset={json.dumps(dataset)}",
        f"training.dataloader.retry_timeout={retry_timeout}",
        "training.dataloader.num_workers=0",
        "training.lanes=4",
        "parallelism.data_parallel_shard_degree=2",
    ]


@contextmanager
def read_status_repeatedly(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Read a status file again and again within the block, and once after it."""
    read, has_ended = list[dict[str, Any]](), threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.2):
            if path.exists():
                read.append(json.loads(path.read_text()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield read
    finally:
        has_ended.set()
        thread.join()
    read.append(json.loads(path.read_text()))


@pytest.mark.slow
def test_ranks_wait_together_for_data_that_is_late_on_one(run: Run) -> None:
    with serve_files() as server:
        server.files["part.jsonl"] = TEXT.encode()
        chosen = settings(f"{server.url}/part.jsonl", retry_timeout="60s")
        uncut, late = run("uncut", *chosen), run("late", *chosen, *SHORT)
        quick = (remote_seams.requests_fail, NEVER, 0.0)
        assert work_together(uncut, {0: quick, 1: quick}) == [0, 0]
        # longer than any collective or step may take
        faults = {0: quick, 1: (remote_seams.requests_fail, 14, 12.0)}
        with read_status_repeatedly(late.parent / "status.json") as read:
            assert work_together(late, faults) == [0, 0]
        waits = [status["waiting"] for status in read if status["waiting"]]
        source = f"'{server.url}/part.jsonl'"
        assert {(one["for"], one["source"]) for one in waits} == {("data", source)}
        seconds = [one["seconds"] for one in waits]
        assert seconds == sorted(seconds) and seconds[-1] >= 8
        # monitors see that the run is alive, and at which step it waits
        waiting = [status for status in read if status["waiting"]]
        assert {(status["state"], status["step"]) for status in waiting} == {
            ("running", waiting[0]["step"])
        }
        assert waiting[-1]["heartbeat"] - waiting[0]["heartbeat"] >= 8
        assert read[-1]["waiting"] is None
        log = (late.parent / "logs" / "rank-1.log").read_text()
        assert "HTTP 503 Service Unavailable; waiting" in log
        assert digests(late) == digests(uncut)


@pytest.mark.slow
def test_ranks_wait_together_for_a_disk_that_is_slow_on_one(run: Run, tmp_path: Path) -> None:
    """The watchdogs ended both: only ranks of remote streams said that they wait."""
    (tmp_path / "part.jsonl").write_text(TEXT)
    chosen = settings(str(tmp_path / "part.jsonl"), retry_timeout="15m")
    uncut, late = run("uncut", *chosen), run("late", *chosen, *SHORT)
    quick = (remote_seams.disk_is_slow, NEVER, 0.0)
    assert work_together(uncut, {0: quick, 1: quick}) == [0, 0]
    # longer than any collective or step may take
    faults = {0: quick, 1: (remote_seams.disk_is_slow, SLOW_READ, 15.0)}
    with read_status_repeatedly(late.parent / "status.json") as read:
        assert work_together(late, faults) == [0, 0]
    waiting = [status for status in read if status["waiting"]]
    assert {status["waiting"]["source"] for status in waiting} == {f"'{tmp_path}/part.jsonl'"}
    assert {(status["state"], status["step"]) for status in waiting} == {
        ("running", waiting[0]["step"])
    }
    assert waiting[-1]["waiting"]["seconds"] >= 8 and waiting[0]["step"] > 0
    assert read[-1]["waiting"] is None
    log = (late.parent / "logs" / "rank-1.log").read_text()
    assert f"no data from '{tmp_path}/part.jsonl' for 2 s; waiting" in log
    assert digests(late) == digests(uncut)


@pytest.mark.slow
def test_data_that_stays_away_ends_all_ranks_at_a_common_step_that_is_saved(run: Run) -> None:
    with serve_files() as server:
        server.files["part.jsonl"] = TEXT.encode()
        chosen = settings(f"{server.url}/part.jsonl", retry_timeout="3s")
        uncut, gone = run("uncut", *chosen), run("gone", *chosen)
        quick = (remote_seams.requests_fail, NEVER, 0.0)
        assert work_together(uncut, {0: quick, 1: quick}) == [0, 0]
        faults = {0: quick, 1: (remote_seams.requests_fail, 14, float(NEVER))}
        assert work_together(gone, faults) == [3, 3]
        assert "error[data/source-unreachable]" in said(gone)
        (last,) = read_metrics(gone.parent / "metrics.jsonl")[-1:]
        assert 1 <= last["step"] < 10
        assert (gone.parent / "checkpoint" / f"step-{last['step']}" / "manifest.json").exists()
        assert work_together(gone, {0: quick, 1: quick}) == [0, 0]
        assert digests(gone) == digests(uncut)


@pytest.mark.slow
def test_a_bad_local_record_ends_all_ranks_at_a_common_step_that_is_saved(
    run: Run, tmp_path: Path
) -> None:
    """Only one rank reads it. The other one waited in a collective, and nobody saved."""
    (tmp_path / "texts").mkdir()
    lines = TEXT.splitlines(keepends=True)
    # one lane reads each file
    lines[3 * 150 + 5] = "{\n"
    for number in range(4):
        part = "".join(lines[150 * number : 150 * (number + 1)])
        (tmp_path / "texts" / f"{number}.jsonl").write_text(part)
    resolved = run("run", *settings(str(tmp_path / "texts"), retry_timeout="3s"))
    assert work_together(resolved, {}) == [3, 3]
    assert "3.jsonl' record 6 column 2 is not JSON" in said(resolved)
    (last,) = read_metrics(resolved.parent / "metrics.jsonl")[-1:]
    # the recipe saves after step 3 too, which would be the last without this save
    assert last["step"] in (1, 2, 4, 5, 7, 8)
    assert (resolved.parent / "checkpoint" / f"step-{last['step']}" / "manifest.json").exists()


@pytest.mark.slow
def test_a_kill_after_each_step_changes_no_bit(run: Run, tmp_path: Path) -> None:
    """With processes, which have read ahead of the step after which the rank is killed."""
    write_numbered(tmp_path / "texts", [9, 12, 10, 11])
    dataset = {"name": "text", "path": str(tmp_path / "texts"), "streaming": True, "window": 4}
    chosen = [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        f"training.dataset={json.dumps(dataset)}",
        "training.dataloader.num_workers=2",
    ]
    uncut, killed = run("uncut", *chosen), run("killed", *chosen)
    note = str(tmp_path / "sequences.jsonl")
    assert work(uncut, remote_seams.sequences_are_noted, note, NEVER) == 0
    expected = Path(note).read_text().splitlines()
    assert len(expected) == STEPS
    for step in range(1, STEPS):
        Path(note).unlink()
        assert work(killed, remote_seams.sequences_are_noted, note, step + 1) == -signal.SIGKILL
        # the recipe saves after each third step
        first = (step - 1) // 3 * 3
        assert Path(note).read_text().splitlines() == expected[first:step]
    assert work(killed) == 0
    assert digests(killed) == digests(uncut)
    losses = [
        {line["step"]: line["loss"] for line in read_metrics(one.parent / "metrics.jsonl")}
        for one in (killed, uncut)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    "num_kills",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.endurance)],
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_token_is_lost_or_repeated_over_kills_at_random_steps(
    ranks: int, num_workers: int, num_kills: int, run: Run, tmp_path: Path
) -> None:
    # two sequences a step for each rank, so that each has lanes for two processes
    batch = max(4, 2 * ranks)
    counts = [batch // 4 * count for count in (12, 15, 9, 14, 11, 13)]
    total = write_numbered(tmp_path / "texts", counts)
    dataset = {"name": "text", "path": str(tmp_path / "texts"), "streaming": True, "window": 4}
    dataset |= {"repeat": False}
    chosen = [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        f"training.dataset={json.dumps(dataset)}",
        f"training.dataloader.num_workers={num_workers}",
        "training.steps=1000",
        f"training.lanes={batch}",
        f"training.global_batch_size={batch}",
        f"parallelism.data_parallel_shard_degree={ranks}",
    ]

    def train(name: str, stops: list[int]) -> dict[int, list[list[int]]]:
        """Return the sequences of each step, the last time that it was trained."""
        steps: dict[int, list[list[int]]] = {}
        for turn, dies_in in enumerate(stops):
            resolved = run(name, *chosen)
            files = [tmp_path / f"{name}-{turn}-{rank}.jsonl" for rank in range(ranks)]
            faults = {
                rank: (remote_seams.sequences_are_noted, str(file), dies_in)
                for rank, file in enumerate(files)
            }
            codes = work_together(resolved, faults, count=ranks)
            assert all(code == 0 for code in codes) == (dies_in == NEVER)
            shares = [dict(map(json.loads, file.read_text().splitlines())) for file in files]
            for step in shares[0]:
                steps[step] = [row for share in shares for row in share.get(step, [])]
        return steps

    whole = train("whole", [NEVER])
    ids = sorted(token for rows in whole.values() for row in rows for token in row)
    assert len(whole) > num_kills + 2 and total == sum(counts)
    draws = random.Random(17 * ranks + num_workers)
    stops = sorted(draws.sample(range(2, len(whole)), num_kills))
    killed = train("killed", [*stops, NEVER])
    assert killed == whole
    assert sorted(token for rows in killed.values() for row in rows for token in row) == ids
    assert digests(run("killed", *chosen), len(whole)) == digests(run("whole", *chosen), len(whole))
