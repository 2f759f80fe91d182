"""Programs of `titanrun data build --pipeline`, run by datatrove.

TITANRUN_DATATROVE_PYTHON is a Python with datatrove; make test-datatrove installs one.
"""

import csv
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from titanrun.components.data.token_records import ID_FACTOR, find_document_boundaries
from titanrun.components.data.tokenized_documents import open_tokenized_documents

pytestmark = pytest.mark.datatrove

TEXTS = [
    "",
    *(f"über {number} " + "word " * (number % 17) for number in range(48)),
    "media\r\nid",
]
RECIPE = """
version: 1
model: {name: llama3, flavor: debugmodel}
tokenizer: tiny
training:
  dataset: {name: text, path: pages, column: body, shuffle: false}
  data_cache: cache
  seq_len: 32
  local_batch_size: 2
  steps: 5
metrics: {log_freq: 1}
lr_scheduler: {warmup_steps: 1}
checkpoint: {enable: false}
"""
TOKENS = "training.dataset={name: tokens, layout: datatrove, path: out_tokens}"
SLURM = ("launch.name=slurm", "launch.partition=cpu", "launch.time_limit=90m")
DEADLINE = 60


def write_jsonl(folder: Path) -> None:
    """Write three files, one with a byte order mark and empty lines, one compressed."""
    # datatrove's own reader takes `media` and `id` for its own columns
    lines = [json.dumps({"body": text, "media": "x", "id": 3}) for text in TEXTS]
    (folder / "a.jsonl").write_text("\n \n".join(lines[:9]), encoding="utf-8-sig")
    (folder / "sub").mkdir()
    (folder / "sub" / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[9:20]).encode()))
    (folder / "z.jsonl").write_text("\n".join(lines[20:]))


def write_csv(folder: Path) -> None:
    for name, texts in (("a.csv", TEXTS[:20]), ("b.csv", TEXTS[20:])):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerows([("id", "body"), *enumerate(texts)])


def write_parquet(folder: Path) -> None:
    for name, texts in (("a.parquet", TEXTS[:20]), ("b.parquet", TEXTS[20:])):
        table = pa.table({"id": range(len(texts)), "body": texts})
        pq.write_table(table, folder / name, row_group_size=7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe and its texts."""
    (tmp_path / "pages").mkdir()
    write_jsonl(tmp_path / "pages")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def run(folder: Path, *arguments: str) -> None:
    line = [sys.executable, "-m", "titanrun", *arguments, "-q"]
    subprocess.run(line, cwd=folder, check=True, timeout=120)


def get_environment(folder: Path) -> dict[str, str]:
    python = Path(os.environ["TITANRUN_DATATROVE_PYTHON"])
    path = f"{folder / 'bin'}:{python.parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(folder), "HF_HUB_OFFLINE": "1"}


def run_datatrove(folder: Path, *line: str, **more: str) -> str:
    environment = {**get_environment(folder), **more}
    done = subprocess.run(
        line, cwd="/", env=environment, check=True, timeout=120, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def run_program(folder: Path, name: str) -> None:
    run_datatrove(folder, os.environ["TITANRUN_DATATROVE_PYTHON"], str(folder / name))


def read_tokens(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def read_built_documents(folder: Path) -> list[list[int]]:
    """The ids of each document that `titanrun data build` wrote."""
    # this packing marks where documents begin
    separate = ("training.dataset.packing=documents", "model.attention.mask=block_causal")
    run(folder, "data", "build", "r.yaml", *separate)
    (file,) = (folder / "cache").glob("*.npy")
    tokens = np.load(file)
    starts, lengths = find_document_boundaries(tokens)
    return [
        (tokens[start : start + length] // ID_FACTOR).tolist()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


def read_datatrove_documents(path: Path) -> list[list[int]]:
    documents = open_tokenized_documents(str(path), "datatrove")
    starts, lengths = find_document_boundaries(documents.tokens)
    return [
        documents.ids[start : start + length].tolist()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_parquet])
@pytest.mark.parametrize("overrides", [(), ("training.dataset.add_bos=false",)])
def test_ids_of_each_document_are_those_of_data_build(
    tmp_path: Path, write: Callable[[Path], None], overrides: tuple[str, ...]
) -> None:
    (tmp_path / "pages").mkdir()
    write(tmp_path / "pages")
    recipe = RECIPE.replace("shuffle", "add_bos: false, shuffle") if overrides else RECIPE
    (tmp_path / "r.yaml").write_text(recipe)
    options = ("--pipeline", "out.py", "--executor", "local", "--tasks", "2")
    run(tmp_path, "data", "build", "r.yaml", *options)
    run_program(tmp_path, "out.py")
    found = read_datatrove_documents(tmp_path / "out_tokens")
    assert found == read_built_documents(tmp_path) and len(found) == len(TEXTS) == 50


def test_a_killed_task_done_again_leaves_the_same_bytes(folder: Path) -> None:
    for name in ("out.py", "cut.py"):
        run(folder, "data", "build", "r.yaml", "--pipeline", name, "--tasks", "2")
    run_program(folder, "out.py")

    # the second task stays within its last file until it is killed
    last, content = folder / "pages" / "z.jsonl", (folder / "pages" / "z.jsonl").read_bytes()
    last.unlink()
    os.mkfifo(last)
    line = [os.environ["TITANRUN_DATATROVE_PYTHON"], str(folder / "cut.py")]
    started = subprocess.Popen(line, env=get_environment(folder), start_new_session=True)
    try:
        wait_until(lambda: (folder / "cut_logs" / "completions" / "00000").exists())
        writer = wait_until(lambda: open_pipe(last))
        os.write(writer, content[: len(content) // 2])
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait(DEADLINE)
    os.close(writer)
    last.unlink()
    last.write_bytes(content)
    assert (folder / "cut_tokens" / "00001_unshuffled.ds").exists()
    assert not (folder / "cut_tokens" / "00001_unshuffled.ds.index").exists()

    before = (folder / "cut_tokens" / "00000_unshuffled.ds").stat().st_mtime_ns
    run_program(folder, "cut.py")
    assert (folder / "cut_tokens" / "00000_unshuffled.ds").stat().st_mtime_ns == before
    expected = read_tokens(folder / "out_tokens")
    for name, bytes_found in read_tokens(folder / "cut_tokens").items():
        assert bytes_found.replace(b"/cut.tokenizer", b"/out.tokenizer") == expected.pop(name)
    assert not expected


def wait_until(find: Callable[[], int | None]) -> int:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = find()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError


def open_pipe(path: Path) -> int | None:
    """Open a pipe for writing, or return None while nobody reads it."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_training_from_the_files_has_the_losses_of_the_cache(folder: Path) -> None:
    run(folder, "data", "build", "r.yaml", "--pipeline", "out.py", "--tasks", "2")
    run_program(folder, "out.py")
    run(folder, "train", "r.yaml", "dump_folder=texts")
    run(folder, "train", "r.yaml", "dump_folder=tokens", TOKENS)
    losses = [read_losses(folder / name) for name in ("texts", "tokens")]
    assert len(losses[0]) == 5 and losses[0] == losses[1]

    # the files name the digest of their tokenizer
    line = [sys.executable, "-m", "titanrun", "train", "r.yaml", "tokenizer=characters", TOKENS]
    done = subprocess.run(line, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3 and "was tokenized with the tokenizer" in done.stderr


def read_losses(folder: Path) -> list[float]:
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if "loss" in entry]


def test_a_record_without_text_ends_the_task(folder: Path) -> None:
    with (folder / "pages" / "z.jsonl").open("a") as file:
        file.write('\n{"body": null}\n')
    run(folder, "data", "build", "r.yaml", "--pipeline", "out.py")
    with pytest.raises(subprocess.CalledProcessError):
        run_program(folder, "out.py")
    assert not (folder / "out_logs" / "completions").exists()


def test_tasks_of_a_slurm_array_write_what_local_ones_do(folder: Path) -> None:
    """The submission is recorded instead of run; a job runs what datatrove pickled for it."""
    run(folder, "data", "build", "r.yaml", "--pipeline", "out.py", "--tasks", "2")
    options = ("--pipeline", "job.py", "--tasks", "2", "--executor", "slurm")
    run(folder, "data", "build", "r.yaml", *options, *SLURM, "launch.account=team")
    (folder / "bin").mkdir()
    for name, line in (
        ("sbatch", f'cat "$2" >> {folder}/batch; echo "job 7"'),
        ("scontrol", "echo one"),
    ):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    for name in ("out.py", "job.py"):
        run_program(folder, name)
    batch = (folder / "batch").read_text()
    for line in ("partition=cpu", "time=01:30:00", "array=0-1", "account=team"):
        assert f"#SBATCH --{line}\n" in batch
    assert "qos" not in batch
    pickled = str(folder / "job_logs" / "executor.pik")
    assert f"launch_pickled_pipeline {pickled}\n" in batch
    for task in ("1", "0"):
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_NODELIST": "one"}
        run_datatrove(folder, "launch_pickled_pipeline", pickled, **variables)
    local, found = (read_datatrove_documents(folder / f"{name}_tokens") for name in ("out", "job"))
    assert found == local and len(found) == 50


def test_the_executor_of_ray_takes_what_is_written(folder: Path) -> None:
    options = ("--pipeline", "out.py", "--tasks", "2", "--executor", "ray")
    run(folder, "data", "build", "r.yaml", *options)
    code = (
        "import runpy\n"
        f"made = runpy.run_path({str(folder / 'out.py')!r})['build_executor']()\n"
        "print(type(made).__name__, made.world_size, len(made.pipeline))"
    )
    told = run_datatrove(folder, os.environ["TITANRUN_DATATROVE_PYTHON"], "-c", code)
    assert told.split() == ["RayPipelineExecutor", "2", "2"]
    assert not (folder / "out_tokens").exists()
