"""A stream of 10 GB that is on no disk, and the memory that reading it needs.

It is a module of its own, because the processes of a stream import what its files are.
"""

import io
import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.lane_plan import PlanFile, StreamPlan
from titanrun.components.data.lane_processes import LaneProcesses
from titanrun.components.data.lane_rows import LaneCursor
from titanrun.components.data.lane_runner import LaneJob, LocalLaneRunner, StreamSource
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer

LANES, STREAM_BYTES = 64, 10 * 2**30
BATCHES_PER_SAMPLE = 5
BLOCK = b"".join(
    json.dumps({"text": f"document {number} " + "and many more words " * (number % 90)}).encode()
    + b"\n"
    for number in range(500)
)


class MadeFile(io.RawIOBase):
    """File of any size: the same lines again and again."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.place = size, 0

    def seek(self, place: int, whence: int = 0) -> int:
        self.place = place
        return place

    def read(self, count: int = -1) -> bytes:
        count = max(0, min(count, self.size - self.place))
        start = self.place % len(BLOCK)
        data = (BLOCK * (count // len(BLOCK) + 2))[start : start + count]
        self.place += len(data)
        return data


@dataclass(frozen=True, slots=True)
class MadeFiles:
    """Files of a stream, one for each lane."""

    def open(self, file: PlanFile) -> Any:
        return MadeFile(file.size)


def make_job(length: int, options: dict[str, Any]) -> LaneJob:
    """Return the lanes of the stream, with further settings of its dataset."""
    size = STREAM_BYTES // LANES // len(BLOCK) * len(BLOCK)
    files = tuple(
        PlanFile(f"{number}.jsonl", size, "", f"{number}.jsonl") for number in range(LANES)
    )
    config = {"name": "text", "path": "made", "streaming": True, **options}
    dataset = TextDatasetConfig.model_validate(config)
    return LaneJob(
        sources=(StreamSource(dataset, StreamPlan(files), MadeFiles()),),
        num_lanes=LANES,
        rows_per_step=1,
        seed=0,
        repeats=True,
        sample_length=length,
    )


def measure(batches: int, length: int, num_workers: int, options: dict[str, Any]) -> None:
    """Print the MiB of this process and those of the stream, before and after some batches each.

    Before, a process needs what this one needs, which has imported the same.
    """
    job = make_job(length, options)
    tokenizer = build_tiny_tokenizer(TinyTokenizerConfig())
    runner: Any = (
        LaneProcesses(job, range(LANES), tokenizer, num_workers=num_workers)
        if num_workers
        else LocalLaneRunner(job, range(LANES), tokenizer)
    )
    measured = [sum_memory([]) * (1 + num_workers)]
    runner.seek(0, {lane: [LaneCursor()] for lane in range(LANES)})
    for batch in range(batches):
        runner.next_shares()
        if batch % BATCHES_PER_SAMPLE == BATCHES_PER_SAMPLE - 1:
            workers = runner._workers if num_workers else []
            measured.append(sum_memory([worker.process.pid for worker in workers]))
    runner.close()
    print(json.dumps(measured))


def sum_memory(processes: list[int]) -> float:
    """Return the resident memory of this process and others in MiB."""
    pids = ("self", *processes)
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize() / 2**20


if __name__ == "__main__":
    # else the files would be of classes of `__main__`
    from tests.components.data import made_stream

    made_stream.measure(*json.loads(sys.argv[1]))
