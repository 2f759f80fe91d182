"""Replica groups as a job of a real Slurm: a step on each of two nodes, one of which is killed."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.slurm_runs import TITANRUN, open_slurm, status, steps_of, wait_until
from tests.worker.conftest import RECIPE, write_tokens
from tests.worker.group_runs import check, end, events, find_workers, losses, names
from tests.worker.held_runs import build_hold, release, wait_for_hold, without_hold

STEPS = 14
LAUNCH = """
fault_tolerance: {enable: true, min_replica_size: 2, heartbeat_timeout_ms: 1000}
launch: {name: slurm, partition: low, max_restarts: 2}
dump_folder: run
"""

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Slurm of two nodes."""
    with open_slurm(tmp_path_factory, num_nodes=2) as environment:
        yield {**environment, "OMP_NUM_THREADS": "1", **build_hold(3)}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    """The tiny recipe of two groups that share three forward passes a step."""
    text = RECIPE % write_tokens(tmp_path / "tokens.npy")
    text = text.replace("global_batch_size: 4", "global_batch_size: 6")
    text = text.replace("steps: 10", f"steps: {STEPS}").replace("interval: 100", "interval: 5")
    (tmp_path / "recipe.yaml").write_text(text + LAUNCH)
    return "recipe.yaml"


def launch(
    folder: Path, slurm: dict[str, str], recipe: str, *words: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*TITANRUN, "launch", recipe, *words],
        cwd=folder,
        env=slurm,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_second_group(run: Path, following: "subprocess.Popen[str]") -> None:
    """Kill the second group of a run while both wait after a step, then let the first go on."""
    wait_for_hold(run, following, groups=[0, 1])
    workers = find_workers(run.relative_to(run.parent), 1)
    assert workers
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    release(run)


def test_a_killed_group_of_a_job_comes_back_and_no_sequence_is_lost(
    tmp_path: Path, slurm: dict[str, str], recipe: str
) -> None:
    run = tmp_path / "run"
    following = launch(tmp_path, slurm, recipe)
    kill_second_group(run, following)
    said = end(following)
    assert "note: restarting replica group 1 after exit code 137 (restart 1 of 2" in said
    alone = [*TITANRUN, "train", recipe, "launch=local", "fault_tolerance.enable=false"]
    subprocess.run(
        [*alone, "dump_folder=alone"],
        cwd=tmp_path,
        env=without_hold(slurm),
        check=True,
        capture_output=True,
    )
    check(run, losses(tmp_path / "alone"))
    assert names(run, 1).count("joined") == 2 and {event["group"] for event in events(run)} == {
        0,
        1,
    }
    assert "nothing to do: step 14 of 14" in end(launch(tmp_path, slurm, recipe))


def test_a_preempted_job_of_groups_saves_and_goes_on(
    tmp_path: Path, slurm: dict[str, str], recipe: str
) -> None:
    run = tmp_path / "run"
    following = launch(tmp_path, slurm, recipe, "training.steps=20")
    wait_for_hold(run, following, groups=[0, 1])
    # each group has one of the two cores of its node: the job that comes needs both
    urgent = ["sbatch", "--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null"]
    subprocess.run(
        [*urgent, "--wrap=sleep 1"], cwd=tmp_path, env=slurm, check=True, capture_output=True
    )
    wait_for_hold(run, following, groups=[0, 1], word="asked")
    release(run)
    wait_until(lambda: status(run)["state"] == "preempted", "the job makes room")
    end(following)
    assert steps_of(run) == list(range(1, 21))
    assert {event["groups"] for event in events(run)} == {2}
    assert len(json.loads((run / "run.json").read_text())["starts"]) == 2


def test_a_group_that_fails_too_often_ends_those_that_cannot_train_without_it(
    tmp_path: Path, slurm: dict[str, str], recipe: str
) -> None:
    run = tmp_path / "run"
    following = launch(tmp_path, slurm, recipe, "launch.max_restarts=0")
    kill_second_group(run, following)
    end(following, 137)
