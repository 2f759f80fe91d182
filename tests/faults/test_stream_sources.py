"""A source of a stream fails for good amid a run, for one of two ranks: both save the same step."""

import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.fragile_server import FragileServer, serve_files
from tests.faults.conftest import EVERY_3, STEPS, Run, digests, said
from tests.faults.processes import work_together
from tests.worker.conftest import write_run
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.recipe.rundir.run_files import read_json_or_empty

# each file is read by one lane, and so by one of the ranks
FILES = [f"texts/{number}.parquet" for number in range(4)]
NUM_ROWS, ROWS_PER_GROUP, GROUP = 60, 2, 4
KINDS = ["refused", "gone", "changed", "damaged"]
FAULTS = {"refused": 403, "gone": 404, "unreachable": 503, "silence": "silence"}


def make_file(number: int) -> bytes:
    """Return a parquet file of short texts, a window of them in each row group."""
    first, content = number * NUM_ROWS, io.BytesIO()
    texts = [f"<{row}> " + "word " * (3 + row % 5) for row in range(first, first + NUM_ROWS)]
    # the footer is read with the 64 KiB before it
    texts[-1] *= 10_000
    options: Any = {"row_group_size": ROWS_PER_GROUP, "write_page_checksum": True}
    options |= {"use_dictionary": False, "compression": "none"}
    # what is in one piece with a column is read ahead
    pq.write_table(pa.table({"text": texts, "number": [*range(NUM_ROWS)]}), content, **options)
    return content.getvalue()


def find_group(content: bytes) -> range:
    """Return the bytes of the row group that cannot be read."""
    column = pq.ParquetFile(io.BytesIO(content)).metadata.row_group(GROUP).column(0)
    start = column.data_page_offset
    return range(start, start + column.total_compressed_size)


def settings(server: FragileServer, num_workers: int, retry_timeout: str = "60s") -> list[str]:
    dataset = {"name": "text", "path": f"{server.url}/texts/", "streaming": True}
    dataset |= {"window": ROWS_PER_GROUP, "shuffle": False}
    return [
        "tokenizer=tiny",
        "model.vocab_size=2048",
        f"training.dataset={json.dumps(dataset)}",
        f"training.dataloader.num_workers={num_workers}",
        f"training.dataloader.retry_timeout={retry_timeout}",
        "training.lanes=4",
        "parallelism.data_parallel_shard_degree=2",
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[FragileServer]:
    """A server with four files."""
    with serve_files() as server:
        server.lists_folders = True
        server.files |= {name: make_file(number) for number, name in enumerate(FILES)}
        yield server


@pytest.fixture(scope="module")
def expected(
    server: FragileServer, shared_tokens: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What the last checkpoint of a run holds whose source never failed."""
    folder = tmp_path_factory.mktemp("whole")
    resolved = write_run(folder, shared_tokens, "run", *EVERY_3, *settings(server, 0))
    assert work_together(resolved, {}) == [0, 0]
    return digests(resolved)


@dataclass(slots=True)
class Outage:
    """A fault of one file from the first request for a row group on.

    It notes when the group is asked for, and calls `on_hit` then.
    """

    server: FragileServer
    name: str
    kind: str
    on_hit: Callable[["Outage"], None]
    content: bytes = field(init=False)
    hits: list[float] = field(default_factory=list)
    stops: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.content = self.server.files[self.name]

    def choose(self, start: int, end: int | None) -> Any:
        """Return the fault of a request."""
        group = find_group(self.content)
        if end is not None and (end <= group.start or start >= group.stop):
            return None
        self.hits.append(time.monotonic())
        self.on_hit(self)
        if self.kind == "changed":
            self.server.files[self.name] = self.content + b"more"
        if self.kind == "damaged":
            place = group.stop - 1 - start
            return lambda body: body[:place] + bytes([body[place] ^ 255]) + body[place + 1 :]
        return FAULTS.get(self.kind)


@contextmanager
def fail(
    server: FragileServer,
    name: str,
    kind: str,
    on_hit: Callable[[Outage], None] = lambda outage: None,
) -> Iterator[Outage]:
    """Let a file fail in the block, after which it is as it was."""
    outage = Outage(server, name, kind, on_hit)
    server.choose_fault[name] = outage.choose
    try:
        yield outage
    finally:
        del server.choose_fault[name]
        server.files[name] = outage.content


def last_step(resolved: Path) -> int:
    """Return the last step that a run has logged."""
    return int(read_metrics(resolved.parent / "metrics.jsonl")[-1]["step"])


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "rank"), [(0, 1), (2, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_fails_for_one_rank_ends_both_after_a_step_that_is_saved(
    kind: str,
    num_workers: int,
    rank: int,
    run: Run,
    server: FragileServer,
    expected: dict[str, str],
) -> None:
    resolved = run("run", *settings(server, num_workers))
    with fail(server, FILES[3 * rank], kind) as outage:
        assert work_together(resolved, {}) == [3, 3]
        # once more at the original address, or past what may have been damaged on the way
        assert len(outage.hits) == (2 if kind in ("refused", "damaged") else 1)
        step = last_step(resolved)
        # the recipe saves after each third step, too
        assert step in (2, 4, 5, 7, 8)
        assert (resolved.parent / "checkpoint" / f"step-{step}" / "manifest.json").exists()
        for told in (said(resolved), (resolved.parent / "said-1.txt").read_text()):
            assert f"error[data/source-{kind}]: '{server.url}/{outage.name}'" in told
        if num_workers == 0:
            # too early: the step that was saved stays
            assert work_together(resolved, {}) == [3, 3]
            assert last_step(resolved) == step
    assert work_together(resolved, {}) == [0, 0]
    assert digests(resolved) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "rank"), [(0, 1), (2, 0)])
@pytest.mark.parametrize("fault", ["unreachable", "silence"])
def test_no_rank_waits_longer_for_missing_data_than_the_run_is_patient(
    fault: str, num_workers: int, rank: int, run: Run, server: FragileServer
) -> None:
    resolved = run("run", *settings(server, num_workers, "4s"))
    with fail(server, FILES[3 * rank], fault) as outage:
        assert work_together(resolved, {}) == [3, 3]
        ended = time.monotonic()
    # 10 s more than the 4 s, and 10 s to save and to end two processes on a slow machine
    assert 4 <= ended - outage.hits[0] < 24
    assert "error[data/source-unreachable]" in said(resolved)
    step = last_step(resolved)
    assert (resolved.parent / "checkpoint" / f"step-{step}" / "manifest.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stop_of_one_rank_ends_both_while_any_waits_for_data(
    rank: int, num_workers: int, run: Run, server: FragileServer, expected: dict[str, str]
) -> None:
    """It reaches the rank that waits for data, or the other one, which waits in a collective."""
    resolved = run("run", *settings(server, num_workers, "280s"))

    def stop_in_wait(outage: Outage) -> None:
        status = read_json_or_empty(resolved.parent / "status.json")
        if status.get("waiting") and not outage.stops:
            outage.stops.append(time.monotonic())
            os.kill(status["pid"], signal.SIGTERM)

    with fail(server, FILES[3 * rank], "unreachable", stop_in_wait):
        assert work_together(resolved, {}) == [75, 75]
    step = last_step(resolved)
    assert 0 < step < STEPS
    assert f"stopped by SIGTERM after step {step} of {STEPS}, saved" in said(resolved)
    assert (resolved.parent / "checkpoint" / f"step-{step}" / "manifest.json").exists()
    assert work_together(resolved, {}) == [0, 0]
    assert digests(resolved) == expected
