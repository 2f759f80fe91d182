"""Metrics of runs on streams have the values of what happened to their files."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.faults.processes import work_together
from titanrun.components.data.lane_loader import LaneLoader
from titanrun.components.data.lane_runner import LocalLaneRunner
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.worker.rank_main import main

Run = Callable[..., Path]
DELAY_SECONDS = 1.0
AT_ONCE = {"Retry-After": "0"}
COUNTS = (8, 12, 10, 14)


def settings(path: str, *, steps: int, workers: int = 0, **options: Any) -> list[str]:
    dataset = {"name": "text", "path": path, "streaming": True, "shuffle": False, **options}
    return [
        "tokenizer=characters",
        "model.n_layers=1",
        f"training.dataset={json.dumps(dataset)}",
        "training.lanes=2",
        f"training.steps={steps}",
        f"training.dataloader.num_workers={workers}",
        "checkpoint.enable=false",
    ]


def format_lines(count: int) -> bytes:
    """Return documents of one sequence each: 16 characters, and the id of the end."""
    return "".join(json.dumps({"text": "abcdefghijklmnop"}) + "\n" for _ in range(count)).encode()


@pytest.fixture
def server() -> Iterator[FragileServer]:
    """Files of which some come late, or only when they are asked for again.

    The first request of each is for its size.
    """

    def delay(content: bytes) -> bytes:
        time.sleep(DELAY_SECONDS)
        return content

    with serve_files() as server:
        server.lists_folders = True
        server.files = {
            f"texts/{part}.jsonl": format_lines(count) for part, count in enumerate(COUNTS)
        }
        server.faults["texts/1.jsonl"] = [None, delay]
        server.faults["texts/2.jsonl"] = [None, (503, AT_ONCE)]
        server.faults["texts/3.jsonl"] = [None, (429, AT_ONCE), (500, AT_ONCE), "cut"]
        yield server


def check_totals(lines: list[dict[str, Any]], server: FragileServer) -> None:
    """Compare the metrics of a run with what the server did to it."""
    assert sum(line["data/bytes"] for line in lines) == sum(map(len, server.files.values()))
    assert sum(line["data/retries"] for line in lines) == 4
    assert not any(server.faults.values())
    # each lane waits for its first file
    assert lines[0]["data/wait_seconds"] >= DELAY_SECONDS
    assert lines[-1]["data/documents"] == sum(COUNTS)
    assert {line[f"data/epoch_{end}"] for line in lines for end in ("min", "max")} == {0}


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_retries_and_waits_are_those_of_the_server(
    workers: int, run: Run, server: FragileServer
) -> None:
    path = f"{server.url}/texts/*.jsonl"
    resolved = run("run", *settings(path, steps=1000, workers=workers, repeat=False))
    assert main([str(resolved)]) == 0
    check_totals(read_metrics(resolved.parent / "metrics.jsonl"), server)


@pytest.mark.slow
def test_they_are_of_all_ranks(run: Run, server: FragileServer) -> None:
    """The second rank, which does not log, waits for its first file, and repeats requests."""
    resolved = run(
        "run",
        *settings(f"{server.url}/texts/*.jsonl", steps=1000, repeat=False),
        "parallelism.data_parallel_shard_degree=2",
    )
    assert work_together(resolved, {}) == [0, 0]
    check_totals(read_metrics(resolved.parent / "metrics.jsonl"), server)


def test_each_line_has_what_was_read_and_waited_for_since_the_last_one(
    run: Run, server: FragileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time in a line is at least that of the reads, and at most that of all around them."""
    spent = {"inner": 0.0, "outer": 0.0}
    bounds: list[tuple[float, float]] = []
    collect = LaneLoader.collect_metrics

    def measure(name: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def measured(self: Any) -> Any:
            started = time.monotonic()
            try:
                return work(self)
            finally:
                spent[name] += time.monotonic() - started

        return measured

    def collect_noted(self: LaneLoader) -> dict[str, float]:
        bounds.append((spent["inner"], spent["outer"]))
        spent.update(inner=0.0, outer=0.0)
        return collect(self)

    monkeypatch.setattr(
        LocalLaneRunner, "next_shares", measure("inner", LocalLaneRunner.next_shares)
    )
    monkeypatch.setattr(LaneLoader, "has_next", measure("outer", LaneLoader.has_next))
    monkeypatch.setattr(LaneLoader, "collect_metrics", collect_noted)
    path = f"{server.url}/texts/*.jsonl"
    resolved = run("run", *settings(path, steps=1000, repeat=False, window=5))
    assert main([str(resolved)]) == 0
    lines = read_metrics(resolved.parent / "metrics.jsonl")
    assert len(bounds) == len(lines)
    for line, (least, most) in zip(lines, bounds, strict=True):
        assert least <= line["data/wait_seconds"] <= most
    # files are read as a whole, each when a lane comes to it
    sizes = [len(content) for content in server.files.values()]
    read = [line["data/bytes"] for line in lines if line["data/bytes"]]
    assert read == [sizes[0] + sizes[1], sizes[2], sizes[3]]
    repeated = [line["data/retries"] for line in lines if line["data/bytes"]]
    assert repeated == [0, 1, 3]


def test_documents_and_epochs_follow_from_how_much_each_lane_has_read(
    run: Run, tmp_path: Path
) -> None:
    """The lanes have files of 6 and 10 documents, of one sequence each, and read two a step."""
    sizes, steps = (6, 10), 24
    for part, count in enumerate(sizes):
        (tmp_path / f"{part}.jsonl").write_bytes(format_lines(count))
    chosen = settings(f"{tmp_path}/*.jsonl", steps=steps, window=1)
    lines = {}
    for freq in (1, 4):
        resolved = run(f"every-{freq}", *chosen, f"metrics.log_freq={freq}")
        assert main([str(resolved)]) == 0
        logged = read_metrics(resolved.parent / "metrics.jsonl")
        lines[freq] = {int(line["step"]): line for line in logged}
    for step, line in lines[1].items():
        assert line["data/documents"] == 4 * step
        # the epoch of the last document
        assert line["data/epoch_max"] == (2 * step - 1) // sizes[0]
        assert line["data/epoch_min"] == (2 * step - 1) // sizes[1]
    assert len(lines[1]) == steps and lines[1][steps]["data/epoch_max"] == 7
    before = 0
    for step, line in lines[4].items():
        between = [lines[1][one] for one in range(before + 1, step + 1)]
        assert line["data/bytes"] == sum(one["data/bytes"] for one in between)
        for name in ("data/documents", "data/epoch_min", "data/epoch_max"):
            assert line[name] == lines[1][step][name]
        before = step
    assert before == steps
