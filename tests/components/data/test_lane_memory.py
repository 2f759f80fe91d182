"""Memory of a stream does not grow with the data that has been read."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[3]
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


def measure(
    batches: int, length: int = 1025, *, num_workers: int = 0, **options: Any
) -> tuple[float, float]:
    """Return by how many MiB the memory grows over a number of batches, and over their second half.

    Each is the median of a tenth: what is read ahead changes from batch to batch. The options are
    those of the dataset.
    """
    settings = json.dumps([batches, length, num_workers, options])
    command = [sys.executable, "-m", "tests.components.data.made_stream", settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    first, *measured = json.loads(done.stdout)
    count = max(1, len(measured) // 10)
    middle = (len(measured) - count) // 2
    end, half = (
        statistics.median(measured[-count:]),
        statistics.median(measured[middle : middle + count]),
    )
    print(f"{settings}: {end - first:.1f} MiB, second half {end - half:.1f} MiB")
    return end - first, end - half


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["windows", "best_fit"])
def test_sixty_four_lanes_of_ten_gigabytes_need_little_memory(packing: str) -> None:
    growth, second_half = measure(40, packing=packing, window=256)
    assert growth < 300
    assert second_half < 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_memory_of_two_processes_stays_constant_over_five_thousand_batches() -> None:
    # each lane reads the next block of its file three times
    growth, second_half = measure(5000, 257, num_workers=2, window=64)
    assert growth < 300
    assert second_half < 20


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
@pytest.mark.timeout(0)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_stays_constant_over_five_thousand_batches(num_workers: int) -> None:
    # the processes read all of the 10 GB: short rows of few of the documents
    filters = [{"column": "text", "max_characters": 40}] if num_workers else []
    length = 15 if num_workers else 1025
    growth, second_half = measure(5000, length, num_workers=num_workers, filters=filters)
    assert growth < 600
    assert second_half < 20
