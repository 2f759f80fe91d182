"""Memory of a stream does not grow with the data that has been read."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

MEASURE = """
import io, json, sys
from pathlib import Path
import numpy as np
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.lane_plan import PlanFile, StreamPlan
from titanrun.components.data.lane_runner import LaneJob, LocalLaneRunner, StreamSource
from titanrun.components.data.lane_rows import LaneCursor
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer

BLOCK = b"".join(
    json.dumps({"text": f"document {number} " + "and many more words " * (number % 90)}).encode()
    + b"\\n"
    for number in range(500)
)


class MadeFile(io.RawIOBase):
    # a file of any size that is nowhere
    def __init__(self, size):
        self.size, self.place = size, 0

    def seek(self, place, whence=0):
        self.place = place
        return place

    def read(self, count=-1):
        count = min(count, self.size - self.place)
        start = self.place % len(BLOCK)
        data = (BLOCK * (count // len(BLOCK) + 2))[start : start + max(0, count)]
        self.place += len(data)
        return data


class MadeFiles:
    fetches = False

    def open(self, file):
        return MadeFile(file.size)


def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


batches, packing = int(sys.argv[1]), sys.argv[2]
size = 10 * 2**30 // 64 // len(BLOCK) * len(BLOCK)
files = tuple(PlanFile(f"{number}.jsonl", size, "", f"{number}.jsonl") for number in range(64))
config = TextDatasetConfig(path="made", streaming=True, packing=packing, window=256)
job = LaneJob(
    sources=(StreamSource(config, StreamPlan(files), MadeFiles()),),
    num_lanes=64, rows_per_step=1, seed=0, repeats=True, sample_length=1025,
)
runner = LocalLaneRunner(job, range(64), build_tiny_tokenizer(TinyTokenizerConfig()))
before = rss()
runner.seek(0, {lane: [LaneCursor()] for lane in range(64)})
measured = []
for _ in range(batches):
    runner.next_shares()
    measured.append(rss())
print(json.dumps([before, measured[batches // 2], measured[-1]]))
"""

MEASURE_FILES = """
import resource, sys
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.data.lane_rows import LaneCursor
from titanrun.components.data.lane_runner import LaneJob, LocalLaneRunner, StreamSource
from titanrun.components.data.local_stream_files import LocalStreamFiles, plan_local_files
from titanrun.components.tokenizers.config import TinyTokenizerConfig
from titanrun.components.tokenizers.huggingface import build_tiny_tokenizer

config = TextDatasetConfig(path=sys.argv[1], streaming=True)
source = StreamSource(config, plan_local_files(sys.argv[1]), LocalStreamFiles())
job = LaneJob(
    sources=(source,), num_lanes=1, rows_per_step=1, seed=0, repeats=True, sample_length=1025
)
runner = LocalLaneRunner(job, range(1), build_tiny_tokenizer(TinyTokenizerConfig()))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
runner.seek(0, {0: [LaneCursor()]})
for _ in range(100):
    runner.next_shares()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def measure(batches: int, packing: str) -> list[float]:
    """MiB before the first batch, after half of them and after all."""
    command = [sys.executable, "-c", MEASURE, str(batches), packing]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["windows", "best_fit"])
def test_sixty_four_lanes_of_ten_gigabytes_need_little_memory(packing: str) -> None:
    before, half, end = measure(40, packing)
    assert end - before < 300
    assert end - half < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a document of 50 MB", "a row group of a million rows"])
def test_large_pieces_of_files_need_bounded_memory(kind: str, tmp_path: Path) -> None:
    if kind == "a document of 50 MB":
        text = "a long story of many words " * (50 * 2**20 // 27)
        (tmp_path / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    else:
        texts = pa.array([f"row {number} " + "word " * 20 for number in range(1_000_000)])
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=1_000_000)
    command = [sys.executable, "-c", MEASURE_FILES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 600


@pytest.mark.endurance
def test_memory_stays_constant_over_five_thousand_batches() -> None:
    before, half, end = measure(5000, "windows")
    assert end - before < 600
    assert end - half < 20
