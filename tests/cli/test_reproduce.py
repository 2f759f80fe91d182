"""`titanrun reproduce`: says what differs here, trains again, and compares step by step."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from titanrun.components.metrics.spec.metrics_file import read_metrics

RECIPE = """
version: 1
device: cpu
model: {name: llama3, flavor: null, vocab_size: 64, dim: 16, n_layers: 1, n_heads: 2, n_kv_heads: 1,
        head_dim: 8, max_seq_len: 32,
        norm_eps: 1.0e-5, tie_word_embeddings: false, rope: {theta: 10000.0, scaling: null},
        feed_forward: {hidden_dim: 32, multiple_of: 8, ffn_dim_multiplier: null}}
tokenizer: null
lr_scheduler: {warmup_steps: 4}
training: {dataset: {name: tokens, path: data.npy}, local_batch_size: 2, seq_len: 16, steps: 8,
           mixed_precision_param: float32}
metrics: {log_freq: 3, trackers: [tensorboard]}
checkpoint: {enable: true, interval: 2}
"""
DATA = (
    "import numpy, sys; numpy.save('data.npy', "
    "numpy.random.Generator(numpy.random.PCG64(int(sys.argv[1]))).integers(64, size=(40, 17)))"
)
NOTHING_TO_REPRODUCE = 2


def titanrun(folder: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "titanrun", *words]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **variables},
    )


def write_data(folder: Path, seed: int) -> None:
    subprocess.run([sys.executable, "-c", DATA, str(seed)], cwd=folder, check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of 8 steps in `run`, stopped after step 3 and resumed; its
    recipe is gone."""
    folder = tmp_path_factory.mktemp("reproduced")
    write_data(folder, 0)
    (folder / "recipe.yaml").write_text(RECIPE)
    assert (
        titanrun(
            folder, "train", "recipe.yaml", "dump_folder=run", TITANRUN_STOP_AFTER="3"
        ).returncode
        == 75
    )
    assert titanrun(folder, "resume", "run").returncode == 0
    (folder / "recipe.yaml").unlink()
    return folder


def edited_metrics(run: Path, step: int, name: str) -> None:
    """Moves a logged number by its last digit."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(
        json.dumps({**line, **({name: line[name] * (1 + 1e-15)} if line["step"] == step else {})})
        + "\n"
        for line in lines
    )
    (run / "metrics.jsonl").write_text(text)


def copied(folder: Path, name: str) -> Path:
    """A copy of the run's files, which a test may change."""
    copy = folder / name
    copy.mkdir()
    for file in ("resolved.yaml", "run.json", "metrics.jsonl"):
        (copy / file).write_bytes((folder / "run" / file).read_bytes())
    return copy


@pytest.mark.slow
def test_the_same_run_is_equal_bit_by_bit_from_any_working_directory(
    folder: Path, tmp_path: Path
) -> None:
    done = titanrun(tmp_path, "reproduce", str(folder / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "the environment equals the recorded one"
    assert done.stdout.splitlines()[1] == "equal: 4 logged steps, up to step 8, bit by bit"
    (again,) = folder.glob("run-reproduced-*")
    assert not (again / "tensorboard").exists()
    assert list(tmp_path.iterdir()) == []
    weights = titanrun(
        folder, "checkpoint", "diff", "run/checkpoint/step-8", f"{again.name}/checkpoint/step-8"
    )
    assert (weights.returncode, weights.stdout) == (0, "")


@pytest.mark.slow
def test_a_checkpoint_is_reproduced_up_to_its_step_inside_of_the_warmup(folder: Path) -> None:
    done = titanrun(folder, "reproduce", "run/checkpoint/step-3", "--out", "up-to-3", "--quiet")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "equal: 2 logged steps, up to step 3, bit by bit" in done.stdout
    assert [line["step"] for line in read_metrics(folder / "up-to-3" / "metrics.jsonl")] == [
        1,
        2,
        3,
    ]


@pytest.mark.slow
def test_the_first_step_that_differs_is_named_with_both_values(folder: Path) -> None:
    copy = copied(folder, "edited")
    edited_metrics(copy, 3, "grad_norm")
    done = titanrun(folder, "reproduce", "edited", "--steps", "3", "--out", "other")
    assert done.returncode == 1
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("different")]
    was, now = re.fullmatch(
        r"different at step 3: grad_norm was (\S+), now (\S+); compared bit by bit", said
    ).groups()  # type: ignore[union-attr]
    assert 0 < abs(float(was) / float(now) - 1) < 1e-14
    # what is recorded of the machine decides whether bits are compared
    record: dict[str, Any] = json.loads((copy / "run.json").read_text())
    for start in record["starts"]:
        start["machine"]["torch"] = "2.11.0"
    (copy / "run.json").write_text(json.dumps(record))
    done = titanrun(folder, "reproduce", "edited", "--steps", "3", "--out", "elsewhere")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith("torch 2.11.0 -> ")
    assert done.stdout.splitlines()[-1].endswith(
        "within 0.01, gradient norms within 0.1 (different torch)"
    )


@pytest.mark.slow
def test_changed_data_is_named_before_the_run_and_found_by_it(folder: Path) -> None:
    write_data(folder, 1)
    try:
        done = titanrun(folder, "reproduce", "run", "--steps", "2", "--out", "other-data")
    finally:
        write_data(folder, 0)
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"data\.npy has different content: (\S+) -> \1 bytes", first)
    assert second.startswith("different at step 1: loss was ")


@pytest.mark.slow
def test_two_ranks_are_reproduced_by_two_and_a_signal_stops_them(folder: Path) -> None:
    (folder / "two.yaml").write_text(RECIPE)
    assert titanrun(folder, "train", "two.yaml", "dump_folder=two", "--nproc", "2").returncode == 0
    (folder / "two.yaml").unlink()
    done = titanrun(folder, "reproduce", "two", "--out", "two-again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "equal: 4 logged steps, up to step 8, bit by bit"
    command = [sys.executable, "-m", "titanrun", "reproduce", "two", "--out", "two-stopped"]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (folder / "two-stopped" / "status.json").exists():
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode in (75, 143)


def test_where_there_is_nothing_to_reproduce_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "resolved.yaml").write_text(RECIPE)
    done = titanrun(tmp_path, "reproduce", "run")
    assert (done.returncode, done.stdout) == (NOTHING_TO_REPRODUCE, "")
    assert done.stderr.startswith("error[file]: 'run' has no logged steps: nothing to reproduce")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps 0 is below 1"),
        (["--tolerance", "2"], "--tolerance 2 is not in [0, 1]"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    done = titanrun(tmp_path, "reproduce", "run", *words)
    assert (done.returncode, done.stderr.startswith(f"error[usage]: {said}")) == (
        NOTHING_TO_REPRODUCE,
        True,
    )


def test_it_is_started_once_for_all_ranks(tmp_path: Path) -> None:
    done = titanrun(tmp_path, "reproduce", "run", WORLD_SIZE="2", RANK="1")
    assert done.returncode == NOTHING_TO_REPRODUCE
    assert "torchrun or srun started 2 ranks of this process" in done.stderr
