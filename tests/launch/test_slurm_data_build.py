"""`titanrun data build --slurm`: the batch scripts, and jobs of a real Slurm that tokenize."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.launch.own_slurm import INSTALL, missing_programs, own_slurm
from titanrun.cli.data import build_data_cache
from titanrun.components.data.token_index import find_token_index
from titanrun.config.problems import ProblemsFound
from titanrun.launch.config import SlurmLaunchConfig
from titanrun.launch.slurm_data_build import SlurmDataBuild

RECIPE = """
version: 1
name: my words
model: {name: llama3, flavor: debugmodel, attention: {mask: block_causal}}
tokenizer: tiny
training:
  dataset: {name: text, path: data, packing: best_fit}
  seq_len: 32
  data_cache: parts
launch: {name: slurm, nproc_per_node: 2, gpus_per_node: 2, partition: low, time_limit: 1h}
"""
DRY = ("recipe.yaml", "--dry-run", "--slurm", "3")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder with a recipe and five files of text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "data").mkdir()
    for number in range(5):
        lines = [json.dumps({"text": f"story {number} {line} " * 5}) for line in range(20)]
        (tmp_path / "data" / f"{number}.jsonl").write_text("\n".join(lines))
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return the two scripts that would be submitted."""
    assert build_data_cache([*DRY, *options]) == 0
    parts, finish = capsys.readouterr().out.split("\n\n#!/bin/bash\n")
    return [parts, finish]


def test_a_dry_run_prints_both_scripts_and_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, finish = dry_run(capsys, "--workers", "4")
    assert "#SBATCH --array=1-3" in parts.splitlines() and "--array" not in finish
    assert '--part "$SLURM_ARRAY_TASK_ID/3" --workers 4' in parts
    assert finish.rstrip().endswith("--finish")
    for script in (parts, finish):
        lines = script.splitlines()
        assert {"#SBATCH --cpus-per-task=4", "#SBATCH --partition=low"} <= set(lines)
        assert "#SBATCH --time=01:00:00" in lines and "#SBATCH --nodes=1" in lines
        # of training, not of tokenization
        assert "gpus" not in script and "ntasks-per-node" not in script
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert not (folder / "parts").exists()


def test_setup_options_and_consent_reach_the_scripts(tmp_path: Path) -> None:
    config = SlurmLaunchConfig(setup=("module load x",), options=("--exclude=n1",), requeue=False)
    cache = tmp_path / "a b %j"
    jobs = SlurmDataBuild(config, "n", 2, 1, cache, tmp_path, "", allows_code=True)
    for script in (jobs.build_parts_script(), jobs.build_finish_script()):
        lines = script.splitlines()
        assert lines.index("module load x") > lines.index("#SBATCH --exclude=n1")
        assert "#SBATCH --no-requeue" in lines and lines[-1].endswith(" --trust")
        assert f"--output='{tmp_path}/a b %%j/launch/" in script


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--slurm", "0"], "--slurm is 0"),
        (["--slurm", "2", "--workers", "0"], "--workers is 0"),
        (["--slurm", "2", "--part", "1/2"], "--part has no meaning"),
        (["--slurm", "2", "--finish"], "--finish has no meaning"),
        (["--slurm", "2", "--repair"], "--repair has no meaning"),
        (["--slurm", "2", "--pipeline", "out.py"], "--pipeline has no meaning"),
        (["--dry-run"], "--dry-run is an option of --slurm"),
        (["--slurm", "2", "launch=local"], "needs the launch section of a Slurm job"),
    ],
)
def test_options_that_do_not_fit_are_named(options: list[str], said: str) -> None:
    with pytest.raises(ProblemsFound) as error:
        build_data_cache(["recipe.yaml", *options])
    (problem,) = error.value.problems
    assert said in problem.message and problem.code == "usage" and problem.hint


def test_an_array_is_canceled_if_nothing_would_finish_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = folder / "bin"
    programs.mkdir()
    # rejects a job that waits for another, as a cluster may by its limit of jobs
    rejects = 'case "$*" in *--dependency*) echo "too many jobs" >&2; exit 1;; *) echo 17;; esac'
    for name, script in (("sbatch", rejects), ("scancel", f'echo "$@" > {folder}/canceled')):
        (programs / name).write_text(f"#!/bin/bash\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with pytest.raises(ProblemsFound, match="sbatch rejected the job: too many jobs"):
        build_data_cache(["recipe.yaml", "--slurm", "2"])
    assert (folder / "canceled").read_text() == "17\n"


def run_command(environment: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "titanrun", "data", "build", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_for_jobs(environment: dict[str, str]) -> None:
    """Wait until the queue is empty."""
    for _ in range(600):
        left = subprocess.run(
            ["squeue", "--noheader"], env=environment, capture_output=True, text=True, check=True
        )
        if not left.stdout:
            return
        time.sleep(0.5)
    raise AssertionError(f"still in the queue: {left.stdout}")


def read_tokens(cache: Path) -> dict[str, bytes]:
    """Return the tokens of each index of a cache."""
    found = {}
    for record in cache.glob("*.json"):
        index = find_token_index(cache, record.stem)
        if index is not None:
            found[record.stem] = np.asarray(index.tokens[:]).tobytes()
    return found


@pytest.mark.slurm
def test_jobs_of_a_real_slurm_make_the_index_that_one_process_makes(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    missing = missing_programs()
    assert not missing, f"this test needs {', '.join(missing)}: {INSTALL}"
    with own_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        few = ("recipe.yaml", "launch.gpus_per_node=null", "--slurm", "2")
        said = run_command(environment, *few)
        assert "tokenizes 2 parts" in said
        again = subprocess.run(
            [sys.executable, "-m", "titanrun", "data", "build", *few],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert again.returncode == 2 and "is already tokenizing" in again.stderr
        # what is edited now does not reach the jobs
        (folder / "recipe.yaml").write_text(RECIPE.replace("seq_len: 32", "seq_len: 16"))
        wait_for_jobs(environment)
    (folder / "recipe.yaml").write_text(RECIPE)
    logs = {log.name: log.read_text() for log in (folder / "parts").rglob("*.log")}
    assert len(logs) == 3, logs
    run_command(environment, "recipe.yaml", "training.data_cache=whole")
    made, expected = read_tokens(folder / "parts"), read_tokens(folder / "whole")
    assert made == expected and expected, logs
    assert list((folder / "parts" / "units").glob("*.npy"))
