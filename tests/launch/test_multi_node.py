"""Several machines train one run; here all of them are this one."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.launch.reserved_port import reserve_port
from titanrun.components.metrics.spec.metrics_file import read_metrics
from titanrun.config.problems import ProblemsFound
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.multi_node import (
    build_torchrun_arguments,
    get_child_pids,
    get_node_exit_code,
    start_multi_node,
)

ROOT = Path(__file__).parents[2]
RECIPE = f"""
extends: [{ROOT}/recipes/llama3_debug.yaml, {ROOT}/recipes/parts/cpu.yaml]
version: 1
model: {{n_layers: 2}}
training: {{global_batch_size: 4, steps: 3, seq_len: 64}}
lr_scheduler: {{total_steps: 3}}
checkpoint: {{enable: true}}
launch: {{nproc_per_node: 1}}
dump_folder: run
"""


def told(config: LocalLaunchConfig) -> dict[str, str]:
    """The options of torch.distributed.run, by name."""
    options = build_torchrun_arguments(config, "logs", 4)
    return dict(zip(options[::2], options[1::2], strict=True))


def test_the_agent_is_told_where_and_how_to_meet() -> None:
    some = told(
        LocalLaunchConfig(
            nnodes=3, rdzv_endpoint="node-0:29500", rdzv_id="job-7", rdzv_timeout_seconds=90
        )
    )
    assert (some["--nnodes"], some["--nproc-per-node"], some["--max-restarts"]) == ("3", "4", "0")
    assert (some["--rdzv-endpoint"], some["--rdzv-id"], some["--rdzv-backend"]) == (
        "node-0:29500",
        "job-7",
        "c10d",
    )
    assert "join_timeout=90" in some["--rdzv-conf"]
    numbered = told(LocalLaunchConfig(nnodes=3, rdzv_endpoint="127.0.0.1:29500", node_rank=2))
    assert (numbered["--rdzv-backend"], numbered["--node-rank"], numbered["--local-addr"]) == (
        "static",
        "2",
        "127.0.0.1",
    )


def test_the_first_own_failure_of_a_machine_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, time_, is_of_another, code in (
        (4, 3.0, False, 3),
        (5, 1.0, True, 70),
        (6, 4.0, False, 5),
    ):
        failure = {
            "time": time_,
            "is_of_another": is_of_another,
            "text": f"error of rank {rank}",
            "exit_code": code,
        }
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(failure))
    assert get_node_exit_code(tmp_path, 70) == 3
    assert capsys.readouterr().err == "error of rank 4\n"


def test_without_a_word_of_a_worker_the_agents_exit_code_counts(tmp_path: Path) -> None:
    assert [get_node_exit_code(tmp_path, code) for code in (0, 75, -signal.SIGKILL)] == [
        0,
        75,
        128 + signal.SIGKILL,
    ]


def test_machines_that_start_again_need_to_know_the_run() -> None:
    config = LocalLaunchConfig(nnodes=2, rdzv_endpoint="node-0:29500", max_restarts=1)
    with pytest.raises(ProblemsFound, match="a run directory that all of them share"):
        start_multi_node(config, [], num_processes=1, run_dir=None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists a process's children")
def test_the_children_of_a_process_are_found() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in get_child_pids(os.getpid())
    child.communicate(b"\n")


Launchers: TypeAlias = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    """Starts a launcher for each list of overrides; none outlives the test."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    started: list[subprocess.Popen[str]] = []
    held = ExitStack()

    def start(*of_each: list[str]) -> list[subprocess.Popen[str]]:
        meeting = [
            f"launch.nnodes={max(2, len(of_each))}",
            f"launch.rdzv_endpoint=127.0.0.1:{held.enter_context(reserve_port())}",
        ]
        command = [sys.executable, "-m", "titanrun", "train", "recipe.yaml", *meeting]
        started.extend(
            subprocess.Popen([*command, *own], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
            for own in of_each
        )
        return started

    with held:
        yield start
    for launcher in started:
        launcher.kill()
        launcher.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("numbered", [False, True], ids=["as_they_arrive", "numbered"])
def test_two_machines_train_as_one_with_two_processes(
    tmp_path: Path, launchers: Launchers, numbered: bool
) -> None:
    started = launchers(*([f"launch.node_rank={node}"] if numbered else [] for node in (1, 0)))
    errors = [launcher.communicate(timeout=240)[1] for launcher in started]
    assert [launcher.returncode for launcher in started] == [0, 0], errors
    assert [error == "" for error in errors].count(True) == 1
    assert "finished: 3 steps" in "".join(errors) and "warn" not in "".join(errors).lower()
    if numbered:
        assert errors[0] == ""
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        "recipe.yaml",
        "--nproc",
        "2",
        "dump_folder=alone",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    lines, alone = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("run", "alone"))
    assert [(line["loss"], line["grad_norm"]) for line in lines] == [
        (line["loss"], line["grad_norm"]) for line in alone
    ]


@pytest.mark.slow
def test_a_signal_to_one_machine_saves_and_stops_all(tmp_path: Path, launchers: Launchers) -> None:
    long = ["training.steps=4000", "lr_scheduler.total_steps=4000"]
    started = launchers(long, long)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 2:
        assert all(launcher.poll() is None for launcher in started)
        time.sleep(0.05)
    started[1].send_signal(signal.SIGTERM)
    errors = "".join(launcher.communicate(timeout=240)[1] for launcher in started)
    assert [launcher.returncode for launcher in started] == [75, 75], errors
    assert (
        re.search(r"stopped by SIGTERM after step \d+ of 4000, saved", errors)
        and "Traceback" not in errors
    )


@pytest.mark.slow
def test_a_machine_that_meets_nobody_is_a_problem(launchers: Launchers) -> None:
    (alone,) = launchers(["launch.rdzv_timeout_seconds=3"])
    _, error = alone.communicate(timeout=240)
    assert alone.returncode == 2
    assert (
        error.startswith("error[usage]: rendezvous of 2 machines at 127.0.0.1:")
        and "Traceback" not in error
    )


@pytest.mark.slow
def test_machines_that_start_different_numbers_are_a_problem(launchers: Launchers) -> None:
    # a batch for 2, 3 and 4 ranks: alone, each machine's own view of the run is sound
    rows = "training.global_batch_size=24"
    started = launchers(["launch.nproc_per_node=2", rows], [rows])
    errors = "".join(launcher.communicate(timeout=240)[1] for launcher in started)
    assert [launcher.returncode for launcher in started] == [2, 2], errors
    assert "world_size 3 is not divisible by nnodes 2" in errors and "Traceback" not in errors


def descendants(pid: int) -> list[int]:
    """A process and all that it started, the youngest first."""
    return [found for child in get_child_pids(pid) for found in descendants(child)] + [pid]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1], ids=["first", "second"])
def test_a_machine_that_dies_and_comes_back_goes_on_with_the_others(
    tmp_path: Path, launchers: Launchers, killed: int
) -> None:
    steps = ["training.steps=12", "lr_scheduler.total_steps=12"]
    long = [*steps, "checkpoint.interval=2", "launch.max_restarts=3"]
    started = launchers(long, long)
    while not (tmp_path / "run" / "checkpoint" / "step-4" / "manifest.json").exists():
        assert [launcher.poll() for launcher in started] == [None, None]
        time.sleep(0.02)
    # all at once, as a machine dies: workers that outlive their launcher would save and stop the
    # run on every machine
    for pid in descendants(started[killed].pid):
        os.kill(pid, signal.SIGKILL)
    back = subprocess.Popen(
        list(map(str, started[killed].args)), cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )  # type: ignore[arg-type]
    started[killed].communicate()
    started[killed] = back
    errors = [launcher.communicate(timeout=240)[1] for launcher in started]
    assert [launcher.returncode for launcher in started] == [0, 0], errors
    assert "finished: 12 steps" in "".join(errors) and "Traceback" not in "".join(errors)
    assert "restarting from step" in errors[1 - killed]
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        "recipe.yaml",
        "--nproc",
        "2",
        "dump_folder=alone",
        *steps,
    ]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    lines, alone = (read_metrics(tmp_path / run / "metrics.jsonl") for run in ("run", "alone"))
    assert [(line["step"], line["loss"]) for line in lines] == [
        (line["step"], line["loss"]) for line in alone
    ]
