"""What a stream costs: memory over gigabytes of documents, and what a rank waits for its data."""

import gzip
import io
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.components.data.config import Filter, TextDatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.lane_loader import build_first_state
from titanrun.components.data.lane_plan import PlanFile, StreamPlan
from titanrun.components.data.lane_processes import LaneProcesses
from titanrun.components.data.lane_runner import LaneJob, StreamSource
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_builder import (
    LoaderPlace,
    StreamSettings,
    build_lane_loader,
    plan_streams,
)
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer

LANES, PROCESSES = 64, 2
STREAM_BYTES = 10 * 2**30
MEMORY_ROW = 1024
SEQ_LEN, ROWS = 2048, 8
TOKENS_A_SECOND = 60_000
STEPS, FIRST_STEPS = 100, 5
LINES = b"".join(
    json.dumps({"text": f"document {number} " + "and many more words " * (number % 90)}).encode()
    + b"\n"
    for number in range(500)
)


class MadeFile(io.RawIOBase):
    """File of any size that is on no disk: the same lines again and again."""

    def __init__(self, size: int, counts: ReadCounts) -> None:
        super().__init__()
        self.size, self.place, self.counts = size, 0, counts

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place."""
        self.place = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        count = max(0, min(size, self.size - self.place))
        start = self.place % len(LINES)
        content = (LINES * (count // len(LINES) + 2))[start : start + count]
        self.place += count
        self.counts.num_bytes += count
        return content


@dataclass(frozen=True, slots=True)
class MadeFiles:
    """Files of a stream that are on no disk."""

    counts: ReadCounts = field(default_factory=ReadCounts)

    def open(self, file: PlanFile) -> Any:
        """Open a file."""
        return MadeFile(file.size, self.counts)


def streams_report(batches: int) -> None:
    """Print each figure beside its target."""
    measure_memory(batches)
    # few tokens of much text: gigabytes are read in minutes
    measure_memory(max(2, batches // 150), filters=(Filter(column="text", max_characters=40),))
    with tempfile.TemporaryDirectory() as folder:
        write_compressed(Path(folder))
        for processes in (0, 1, PROCESSES):
            measure_waits(Path(folder), processes)


def measure_memory(batches: int, *, filters: tuple[Filter, ...] = ()) -> None:
    """Print how much the memory of a rank and its processes grows over a long stream."""
    size = STREAM_BYTES // LANES // len(LINES) * len(LINES)
    planned = tuple(
        PlanFile(f"{number}.jsonl", size, "", f"{number}.jsonl") for number in range(LANES)
    )
    config, files = TextDatasetConfig(path="made", streaming=True, filters=filters), MadeFiles()
    job = LaneJob(
        sources=(StreamSource(config, StreamPlan(planned), files),),
        num_lanes=LANES,
        rows_per_step=1,
        seed=0,
        repeats=True,
        sample_length=MEMORY_ROW + 1,
        counts=files.counts,
    )
    runner = LaneProcesses(
        job, range(LANES), build_tiny_tokenizer(TinyTokenizerConfig()), num_workers=PROCESSES
    )
    runner.seek(0, build_first_state(job).cursors)
    started, measured = time.monotonic(), [0.0]
    for _ in range(batches):
        runner.next_shares()
        measured.append(sum_memory(runner))
    seconds, read = time.monotonic() - started, runner.pop_counts().num_bytes / 2**30
    runner.close()
    tokens = batches * LANES * (MEMORY_ROW + 1)
    print(
        f"{read:.2f} GiB of {STREAM_BYTES / 2**30:.0f} GiB in {batches} batches of {LANES} x "
        f"{MEMORY_ROW}, {PROCESSES} processes, {len(filters)} filters, {seconds:.0f} s, "
        f"{tokens / seconds:,.0f} tokens/s"
    )
    tell("growth from the first batch to the last, MiB", measured[-1] - measured[1], "below 600")
    half = measured[batches // 2]
    tell("growth over the second half, MiB", measured[-1] - half, "below 20")


def sum_memory(runner: LaneProcesses) -> float:
    """Return the resident memory of this process and those of a runner, in MiB."""
    pids = ["self", *(str(worker.process.pid) for worker in runner._workers)]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * 4096 / 2**20


def write_compressed(folder: Path) -> None:
    """Write a gzip file for each lane."""
    for number in range(LANES):
        (folder / f"{number:02}.jsonl.gz").write_bytes(gzip.compress(LINES * 4, 1))


def measure_waits(folder: Path, processes: int) -> None:
    """Print what a rank waits for its batches while a device computes at a given speed."""
    config = TextDatasetConfig(path=str(folder), streaming=True)
    started = time.monotonic()
    loader = build_lane_loader(
        config,
        plan_streams(config, RetryPolicy(0)),
        StreamSettings(lanes=ROWS, global_batch_size=ROWS, seed=0, sample_length=SEQ_LEN + 1),
        tokenizer=build_tiny_tokenizer(TinyTokenizerConfig()),
        place=LoaderPlace(dataloader=DataLoaderConfig(num_workers=processes)),
        build_indexed=lambda *_: None,  # type: ignore[arg-type,return-value]
    )
    loader.next_samples()
    first, step = time.monotonic() - started, ROWS * SEQ_LEN / TOKENS_A_SECOND
    waits = []
    for _ in range(STEPS):
        time.sleep(step)
        began = time.monotonic()
        loader.next_samples()
        waits.append(time.monotonic() - began)
    loader.close()
    waits = waits[FIRST_STEPS:]
    words = f"{processes} processes"
    tell(f"share of a step at 60k tokens/s, {words}", statistics.mean(waits) / step, "below 0.005")
    slowest = 1000 * sorted(waits)[len(waits) * 99 // 100]
    tell(f"99th percentile of a batch of {ROWS} x {SEQ_LEN}, {words}, ms", slowest, "at most 2")
    tell(f"opening to the first batch, {words}, s", first, "at most 10")


def tell(what: str, value: float, target: str) -> None:
    """Print one figure and its target."""
    print(f"{what:<80} {value:9.4f}  target: {target}", flush=True)
