"""An hour of CPU on a stream: memory, open files and threads stay what they were.

TITANRUN_ENDURANCE_SECONDS is another CPU time. TITANRUN_ENDURANCE_FILE keeps what was measured.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics

CPU_SECONDS = float(os.environ.get("TITANRUN_ENDURANCE_SECONDS", "3600"))
SAMPLE_SECONDS = 2.0
STREAM_BYTES = 10 * 10**9
NUM_FILES, LINES_A_MEMBER = 32, 2000
MOST_GROWTH_MIB = 20
RECIPE = """
version: 1
name: endurance
device: cpu
model: {{name: llama3, flavor: debugmodel, dim: 32, n_layers: 1}}
tokenizer: tiny
training:
  # few tokens of much text: gigabytes are read while a small model trains
  dataset: {{name: text, path: {texts}, streaming: true,
             filters: [{{column: text, max_characters: 40}}]}}
  local_batch_size: 8
  seq_len: 32
  steps: 100000000
  mixed_precision_param: float32
  dataloader: {{num_workers: 2}}
metrics: {{log_freq: 20}}
checkpoint: {{enable: true, interval: 1000, keep_latest_k: 2}}
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of a run hold at one moment."""

    wall_seconds: float
    cpu_seconds: float
    rss_mib: float
    open_files: int
    threads: int
    processes: int


def write_stream(folder: Path) -> None:
    """Write gzip files of several members, 10 GB when they are unpacked."""
    folder.mkdir()
    lines = "".join(
        json.dumps({"text": f"document {number} " + "and many more words " * (number % 90)}) + "\n"
        for number in range(LINES_A_MEMBER)
    ).encode()
    member = gzip.compress(lines, 9)
    count = STREAM_BYTES // NUM_FILES // len(lines) + 1
    for number in range(NUM_FILES):
        (folder / f"{number:02}.jsonl.gz").write_bytes(member * count)


def find_processes(pid: int) -> list[Path]:
    """Return the folders of a process and of all below it."""
    found = [Path(f"/proc/{pid}")]
    for thread in (found[0] / "task").iterdir():
        for child in (thread / "children").read_text().split():
            found += find_processes(int(child))
    return found


def take_sample(pid: int, started: float) -> Sample:
    """Measure a run: what ended processes used counts, too."""
    found = find_processes(pid)
    stats = [(one / "stat").read_text().rpartition(")")[2].split() for one in found]
    ticks = sum(int(number) for stat in stats for number in stat[11:15])
    return Sample(
        time.monotonic() - started,
        ticks / os.sysconf("SC_CLK_TCK"),
        sum(int(stat[21]) for stat in stats) * os.sysconf("SC_PAGE_SIZE") / 2**20,
        sum(len(list((one / "fd").iterdir())) for one in found),
        sum(int(stat[17]) for stat in stats),
        len(found),
    )


def watch(process: subprocess.Popen[bytes]) -> list[Sample]:
    """Measure a run until it has used its CPU time."""
    started, samples = time.monotonic(), list[Sample]()
    while not samples or samples[-1].cpu_seconds < CPU_SECONDS:
        assert process.poll() is None, "the run ended"
        # a process may end meanwhile
        with suppress(FileNotFoundError, ProcessLookupError):
            samples.append(take_sample(process.pid, started))
            write_sample(samples[-1])
        time.sleep(SAMPLE_SECONDS)
    return samples


def write_sample(sample: Sample) -> None:
    """Keep a sample, so that a run that is stopped leaves what it measured."""
    path = os.environ.get("TITANRUN_ENDURANCE_FILE")
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(",".join(f"{value:g}" for value in astuple(sample)) + "\n")


def find_most(samples: Sequence[Sample], name: str) -> float:
    """Return the largest value: saves open files and threads for a moment."""
    return max(float(getattr(one, name)) for one in samples)


@pytest.mark.endurance
@pytest.mark.timeout(0)
def test_an_hour_on_a_stream_needs_constant_memory_and_files(tmp_path: Path) -> None:
    write_stream(tmp_path / "texts")
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE.format(texts=tmp_path / "texts"))
    command = [sys.executable, "-m", "titanrun", "train", str(recipe), f"dump_folder={folder}"]
    with (tmp_path / "said.txt").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        samples = watch(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=300) == 75
    finally:
        process.kill()
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[3 * quarter :]
    assert find_most(late, "rss_mib") - find_most(early, "rss_mib") < MOST_GROWTH_MIB
    for name in ("open_files", "threads", "processes"):
        assert find_most(late, name) <= find_most(early, name), name
    lines = read_metrics(folder / "metrics.jsonl")
    assert lines[-1]["step"] > 1000
    # all of the stream was read
    if CPU_SECONDS >= 3600:
        assert sum(line["data/bytes"] for line in lines) > stored_bytes(tmp_path / "texts")
        assert lines[-1]["data/epoch_min"] >= 1


def stored_bytes(folder: Path) -> int:
    """Return the size of the files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())
