"""Commands and runs in a Slurm of the test's own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launch.own_slurm import INSTALL, missing_programs, own_slurm
from titanrun.components.metrics.spec.metrics_file import read_metrics

TITANRUN = [sys.executable, "-m", "titanrun"]
Ask = Callable[..., str]


@contextmanager
def open_slurm(
    tmp_path_factory: pytest.TempPathFactory, num_nodes: int = 1
) -> Iterator[dict[str, str]]:
    """Start a Slurm of nodes with two cores, and give the environment in which it is found."""
    missing = missing_programs()
    assert not missing, f"these tests need {', '.join(missing)}: {INSTALL}"
    with own_slurm(tmp_path_factory.mktemp("slurm"), num_nodes=num_nodes) as environment:
        yield environment


def build_ask(folder: Path, environment: dict[str, str]) -> Ask:
    """A function that runs a command in a folder and gives what it prints."""

    def answer(*words: str) -> str:
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return answer


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    for _ in range(900):
        if is_so():
            return
        time.sleep(0.2)
    raise AssertionError(f"never: {what}")


def steps_of(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    return [line["step"] for line in read_metrics(file)] if file.exists() else []


def status(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "status.json").read_text())
    return found
