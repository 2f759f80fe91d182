"""What a stream costs: memory over gigabytes of documents, and what a rank waits for its data."""

import gzip
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from titanrun.components.data.config import Filter, TextDatasetConfig
from titanrun.components.data.dataloader_config import DataLoaderConfig
from titanrun.components.data.lane_loader import LaneLoader, build_first_state
from titanrun.components.data.lane_plan import PlanFile, StreamPlan
from titanrun.components.data.lane_processes import LaneProcesses
from titanrun.components.data.lane_runner import LaneJob, LocalLaneRunner, StreamSource
from titanrun.components.data.read_counts import ReadCounts
from titanrun.components.data.source_faults import RetryPolicy
from titanrun.components.data.stream_builder import (
    LoaderPlace,
    StreamSettings,
    build_lane_loader,
    plan_streams,
)
from titanrun.components.data.window_prefetch import WindowPrefetcher
from titanrun.components.tokenizers.config import HuggingFaceTokenizerConfig, TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import (
    build_huggingface_tokenizer,
    build_tiny_tokenizer,
)
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

LANES, PROCESSES = 64, 2
STREAM_BYTES = 10 * 2**30
MEMORY_ROW = 1024
# short rows of few of the documents: the whole stream is read in 5,000 batches, within minutes
THIN_ROW, THIN_BATCHES, THIN = 14, 5000, (Filter(column="text", max_characters=40),)
SEQ_LEN, ROWS = 2048, 8
TOKENS_A_SECOND = 60_000
STEPS, FIRST_STEPS = 100, 5
SERVER_SECONDS, SERVER_BATCHES = 0.1, 200
LARGE_VOCABULARY, NUM_WORDS = 128_000, 200_000
LINES = b"".join(
    json.dumps({"text": f"document {number} " + "and many more words " * (number % 90)}).encode()
    + b"\n"
    for number in range(500)
)


class MadeFile(io.RawIOBase):
    """File of any size that is on no disk: the same lines again and again.

    Each read takes `delay` seconds.
    """

    def __init__(self, size: int, counts: ReadCounts, delay: float = 0.0) -> None:
        super().__init__()
        self.size, self.place, self.counts, self.delay = size, 0, counts, delay

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place."""
        self.place = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        time.sleep(self.delay)
        count = max(0, min(size, self.size - self.place))
        start = self.place % len(LINES)
        content = (LINES * (count // len(LINES) + 2))[start : start + count]
        self.place += count
        self.counts.num_bytes += count
        return content


@dataclass(frozen=True, slots=True)
class MadeFiles:
    """Files of a stream that are on no disk, and answer after some seconds."""

    counts: ReadCounts = field(default_factory=ReadCounts)
    delay: float = 0.0

    def open(self, file: PlanFile) -> Any:
        """Open a file."""
        return MadeFile(file.size, self.counts, self.delay)


def streams_report(batches: int) -> None:
    """Print each figure beside its target."""
    measure_memory(batches, MEMORY_ROW)
    measure_memory(THIN_BATCHES, THIN_ROW, filters=THIN)
    measure_slow_server(SERVER_SECONDS, SERVER_BATCHES)
    with tempfile.TemporaryDirectory() as folder:
        write_compressed(Path(folder), [LINES * 4] * LANES)
        tiny = build_tiny_tokenizer(TinyTokenizerConfig())
        for processes in (0, 1, PROCESSES):
            measure_waits(Path(folder), processes, tiny)
        measure_arrived(Path(folder), PROCESSES, tiny)
    with tempfile.TemporaryDirectory() as folder:
        large, texts = build_large_tokenizer()
        write_compressed(Path(folder), texts)
        measure_arrived(Path(folder), 4, large)


def measure_memory(batches: int, row: int, *, filters: tuple[Filter, ...] = ()) -> None:
    """Print how much the memory of a rank and its processes grows over a long stream."""
    job = make_job(MadeFiles(), row, filters)
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
    tokens = batches * LANES * (row + 1)
    print(
        f"{read:.2f} GiB of {STREAM_BYTES / 2**30:.0f} GiB in {batches} batches of {LANES} x "
        f"{row}, {PROCESSES} processes, {len(filters)} filters, {seconds:.0f} s, "
        f"{tokens / seconds:,.0f} tokens/s"
    )
    tell("growth from the first batch to the last, MiB", measured[-1] - measured[1], "below 600")
    half = measured[batches // 2]
    tell("growth over the second half, MiB", measured[-1] - half, "below 20")


def make_job(files: MadeFiles, row: int, filters: tuple[Filter, ...] = ()) -> LaneJob:
    """Build the lanes of a stream that is on no disk."""
    size = STREAM_BYTES // LANES // len(LINES) * len(LINES)
    planned = tuple(
        PlanFile(f"{number}.jsonl", size, "", f"{number}.jsonl") for number in range(LANES)
    )
    config = TextDatasetConfig(path="made", streaming=True, filters=filters)
    return LaneJob(
        sources=(StreamSource(config, StreamPlan(planned), files),),
        num_lanes=LANES,
        rows_per_step=1,
        seed=0,
        repeats=True,
        sample_length=row + 1,
        counts=files.counts,
    )


def measure_slow_server(delay: float, batches: int) -> None:
    """Print what reading windows ahead saves if each read of a file takes some time."""
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    for name, prefetcher in (("when needed", None), ("ahead", WindowPrefetcher())):
        job = make_job(MadeFiles(delay=delay), MEMORY_ROW)
        runner = LocalLaneRunner(job, range(LANES), tokenizer, prefetcher)
        started = time.monotonic()
        runner.seek(0, build_first_state(job).cursors)
        runner.next_shares()
        first = time.monotonic() - started
        for _ in range(batches):
            runner.next_shares()
        seconds = time.monotonic() - started - first
        words = f"reads of {1000 * delay:.0f} ms, windows read {name}"
        tell(f"{words}, first batch, s", first, "at most 10")
        speed = batches * LANES * MEMORY_ROW / seconds
        tell(f"{words}, {batches} batches, tokens a second", speed, "none")


def sum_memory(runner: LaneProcesses) -> float:
    """Return the resident memory of this process and those of a runner, in MiB."""
    pids = ["self", *(str(worker.process.pid) for worker in runner._workers)]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * 4096 / 2**20


def write_compressed(folder: Path, contents: Sequence[bytes]) -> None:
    """Write a gzip file for each lane."""
    for number, content in enumerate(contents):
        (folder / f"{number:02}.jsonl.gz").write_bytes(gzip.compress(content, 1))


def open_loader(folder: Path, processes: int, tokenizer: Tokenizer) -> LaneLoader:
    """Open the loader of a rank."""
    config = TextDatasetConfig(path=str(folder), streaming=True)
    return build_lane_loader(
        config,
        plan_streams(config, RetryPolicy(0)),
        StreamSettings(lanes=ROWS, global_batch_size=ROWS, seed=0, sample_length=SEQ_LEN + 1),
        tokenizer=tokenizer,
        place=LoaderPlace(dataloader=DataLoaderConfig(num_workers=processes)),
        build_indexed=lambda *_: None,  # type: ignore[arg-type,return-value]
    )


def measure_waits(folder: Path, processes: int, tokenizer: Tokenizer) -> None:
    """Print what a rank waits for its batches while a device computes at a given speed."""
    started = time.monotonic()
    loader = open_loader(folder, processes, tokenizer)
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
    tell(f"99th percentile of {ROWS} x {SEQ_LEN}, {words}, ms", find_slowest(waits), "at most 2")
    tell(f"opening to the first batch, {words}, s", first, "at most 10")


def measure_arrived(folder: Path, processes: int, tokenizer: Tokenizer) -> None:
    """Print what a batch costs that was read ahead, and how fast the processes read.

    Both are what a busy machine shows as well: waits are waits for a core there.
    """
    loader = open_loader(folder, processes, tokenizer)
    loader.next_samples()
    workers = loader._runner._workers  # type: ignore[attr-defined]
    walls, works, before = [], [], [read_cpu_seconds(one.process.pid) for one in workers]
    for _ in range(STEPS):
        while any(one.connection.num_answers == 0 for one in workers):
            time.sleep(0.001)
        began, worked, queued = time.monotonic(), time.thread_time(), read_queued_seconds()
        loader.next_samples()
        walls.append(time.monotonic() - began - (read_queued_seconds() - queued))
        works.append(time.thread_time() - worked)
    used = [
        read_cpu_seconds(one.process.pid) - earlier
        for one, earlier in zip(workers, before, strict=True)
    ]
    loader.close()
    step, words = ROWS * SEQ_LEN / TOKENS_A_SECOND, f"{processes} processes, a batch that arrived"
    tell(f"{words}, share of a step, CPU", statistics.mean(works) / step, "below 0.005")
    tell(f"{words}, 99th percentile, CPU ms", find_slowest(works), "at most 2")
    tell(f"{words}, 99th percentile on a free core, ms", find_slowest(walls), "at most 2")
    speed = STEPS * ROWS * SEQ_LEN / max(used)
    entries = f"{processes} processes, {tokenizer.vocab_size:,} entries"
    tell(f"{entries}, tokens a second, by CPU seconds", speed, "at least 60000 of 4 processes")


def build_large_tokenizer() -> tuple[Tokenizer, list[bytes]]:
    """Train a tokenizer with as many entries as those of large models, and write its texts.

    Words are drawn as often as in a language: the n-th most frequent one n times less.
    """
    draws = np.random.default_rng(0)
    parts = [a + b for a in "bcdfghklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er")]
    drawn = draws.integers(0, len(parts), (NUM_WORDS, 5)).tolist()
    lengths = draws.integers(1, 6, NUM_WORDS).tolist()
    words = [
        "".join(parts[part] for part in word[:length])
        for word, length in zip(drawn, lengths, strict=True)
    ]
    odds = 1 / np.arange(1, NUM_WORDS + 1)
    texts = []
    for _ in range(LANES):
        rows = draws.choice(NUM_WORDS, size=(500, 180), p=odds / odds.sum()).tolist()
        texts.append([" ".join(words[number] for number in row) for row in rows])
    built = tokenizers.Tokenizer(tokenizers.models.BPE())
    built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|begin|>", "<|end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=LARGE_VOCABULARY, special_tokens=special, show_progress=False
    )
    # each word once, so that there are enough pairs to merge
    built.train_from_iterator([" ".join(words), *(text for one in texts for text in one)], trainer)
    with tempfile.TemporaryDirectory() as folder:
        built.save(f"{folder}/tokenizer.json")
        tokenizer = build_huggingface_tokenizer(HuggingFaceTokenizerConfig(path=folder))
    contents = ["".join(json.dumps({"text": text}) + "\n" for text in one) for one in texts]
    return tokenizer, [content.encode() for content in contents]


def read_queued_seconds() -> float:
    """Return how long this thread could have run while other programs had the cores."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def find_slowest(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds."""
    return 1000 * sorted(seconds)[len(seconds) * 99 // 100]


def tell(what: str, value: float, target: str) -> None:
    """Print one figure and its target."""
    print(f"{what:<76} {value:12.4f}  target: {target}", flush=True)
