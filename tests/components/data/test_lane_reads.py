"""What a resume reads again: a window and a row group of each lane, or a compressed file so far.

Of an arrow file, a window and a batch."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.components.data.lane_streams import Ranks, same
from titanrun.components.data import line_reader
from titanrun.components.data.config import TextDatasetConfig
from titanrun.components.tokenizers.tokenizer_protocol import Tokenizer

LANES, RECORDS, WINDOW, GROUP = 2, 20_000, 32, 500
# of the file object, and of pyarrow for the footer
BUFFER, FOOTER = 8 * 2**10, 64 * 2**10


def write_files(folder: Path, suffix: str) -> int:
    """Write a file for each lane and return the bytes of a record."""
    texts = [f"{number:<100}" for number in range(RECORDS)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    for lane in range(LANES):
        path = folder / f"{lane}{suffix}"
        if suffix == ".parquet":
            table = pa.table({"text": texts})
            pq.write_table(
                table, path, row_group_size=GROUP, compression="none", use_dictionary=False
            )
        elif suffix.endswith(".arrow"):
            table = pa.table({"text": texts})
            new = pa.ipc.new_stream if suffix.startswith(".stream") else pa.ipc.new_file
            with new(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=GROUP)
        else:
            path.write_bytes(gzip.compress(lines) if suffix == ".jsonl.gz" else lines)
    return len(lines) // RECORDS


def count_bytes(ranks: Ranks) -> int:
    return int(ranks.loaders[0].collect_metrics()["data/bytes"])


@pytest.mark.parametrize(
    "suffix", [".jsonl", ".parquet", ".jsonl.gz", ".feather.arrow", ".stream.arrow"]
)
def test_a_resume_reads_little_again(
    suffix: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_reader, "BLOCK_BYTES", BUFFER)
    record = write_files(tmp_path, suffix)
    config = TextDatasetConfig(path=str(tmp_path), streaming=True, window=WINDOW)
    ranks = Ranks(config, tokenizer, lanes=LANES, length=1025)
    ranks.batches(300)
    so_far, state, rest = count_bytes(ranks), ranks.state(), ranks.batches(3)
    assert so_far > 0.5 * sum(file.stat().st_size for file in tmp_path.iterdir())
    resumed = Ranks(config, tokenizer, lanes=LANES, length=1025)
    resumed.load(state)
    one = resumed.batches(1)
    read = count_bytes(resumed)
    # the batch itself has documents of some windows
    windows = (2 + 4 * 1025 // (record * WINDOW)) * WINDOW * record
    allowed = {
        ".jsonl": windows + 2 * BUFFER,
        ".parquet": windows + 2 * GROUP * record + 2 * FOOTER,
        ".feather.arrow": windows + 2 * GROUP * record + 2 * FOOTER,
        ".stream.arrow": windows + 2 * GROUP * record + 2 * BUFFER,
        ".jsonl.gz": so_far // LANES + 128 * 2**10,
    }
    assert read <= LANES * allowed[suffix]
    assert same(one + resumed.batches(2), rest)
