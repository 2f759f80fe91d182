"""`titanrun generate --nproc`: processes that split the model say what one process says."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from titanrun.cli import generate as command
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.worker.rank_main import main

RECIPE = """
version: 1
name: talks
device: cpu
model: {name: llama3, flavor: debugmodel, dim: 64, n_layers: 2, n_heads: 4, n_kv_heads: 2,
        max_seq_len: 96}
training: {dataset: tiny, local_batch_size: 4, seq_len: 64, steps: 8,
           mixed_precision_param: float32}
optimizer: {lr: 1.0e-2}
checkpoint: {enable: true}
"""
PROMPTS = [
    "--prompt",
    "Once there was",
    "--prompt",
    "the",
    "--prompt",
    "A king and his daughter went",
]
EXPERTS = (
    "model={name: qwen3, flavor: debugmodel_moe, dim: 64, n_heads: 4, n_kv_heads: 2, n_layers: "
    "2, moe: {num_experts: 4, top_k: 2, "
    "hidden_dim: 96}, max_seq_len: 96}",
)


def trained(folder: Path, overrides: tuple[str, ...] = ()) -> Path:
    """The folder of a run."""
    (folder / "talks.yaml").write_text(RECIPE, encoding="utf-8")
    resolved = folder / "run" / "resolved.yaml"
    resolved.parent.mkdir()
    resolved.write_text(
        resolve_recipe(str(folder / "talks.yaml"), overrides, environment={}).text, encoding="utf-8"
    )
    assert main([str(resolved)]) == 0
    return resolved.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("talks"))


def told(folder: Path, *words: str, nproc: int, code: int = 0) -> tuple[str, str]:
    """What the command prints, on stdout and on stderr."""
    line = [
        sys.executable,
        "-m",
        "titanrun",
        "generate",
        str(folder),
        *words,
        "--nproc",
        str(nproc),
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [(), ("model.tie_word_embeddings=true",), EXPERTS],
    ids=["dense", "tied", "experts"],
)
def test_the_likeliest_tokens_are_those_of_one_process(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    folder = trained(tmp_path, overrides)
    asked = [*PROMPTS, "--max-new-tokens", "12", "--temperature", "0", "--ignore-eos", "--json"]
    split, alone = (told(folder, *asked, nproc=nproc)[0] for nproc in (2, 1))
    assert split == alone
    answers = [json.loads(line) for line in split.splitlines()]
    assert [len(answer["token_ids"]) for answer in answers] == [12, 12, 12]


@pytest.mark.slow
def test_draws_stops_and_text_are_those_of_one_process(run: Path) -> None:
    asked = [
        *PROMPTS,
        "--max-new-tokens",
        "9",
        "--temperature",
        "0.8",
        "--top-k",
        "20",
        "--seed",
        "3",
        "--stop",
        "e",
    ]
    assert told(run, *asked, nproc=2) == told(run, *asked, nproc=1)


@pytest.mark.slow
def test_what_every_process_finds_wrong_is_said_once(run: Path) -> None:
    printed, error = told(run, "--prompt", "", nproc=2, code=2)
    assert printed == "" and error.count("has no tokens to continue") == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_process_that_dies_takes_the_others_along(run: Path) -> None:
    line = [sys.executable, "-m", "titanrun", "generate", str(run), *PROMPTS, "--nproc", "2"]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:
            time.sleep(0.02)
        last = int(children.read_text().split()[1])
        os.kill(last, signal.SIGKILL)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 137
    assert "rank 1 was killed by SIGKILL" in error


@pytest.mark.parametrize(
    ("count", "message", "hint"),
    [
        (3, "n_heads 4 is not divisible by tensor_parallel_degree 3", "1 or 2"),
        (4, "n_kv_heads 2 is not divisible by tensor_parallel_degree 4", "1 or 2"),
        (0, "1 or more", ""),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_starts(
    run: Path, count: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "run_worker_pool", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ProblemsFound, match=message) as found:
        command.run([str(run), "--prompt", "x", "--nproc", str(count)])
    assert hint in (found.value.problems[0].hint or "")
