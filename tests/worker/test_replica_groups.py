"""Replica groups of torchft on this machine: what a run computes while its groups are killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from tests.worker.conftest import RECIPE, write_tokens
from tests.worker.group_runs import (
    BATCH,
    GROUPS,
    Start,
    check,
    digests,
    end,
    events,
    find_workers,
    frozen,
    kill_lighthouse,
    losses,
    names,
    start_runs,
)
from tests.worker.held_runs import release, wait_for_hold

SCHEMAS = Path(__file__).parents[2] / "schemas"
pytestmark = [pytest.mark.torchft]

STEPS = 14
DRAWS = "random draws such as dropout depend on their number, the order of the data does not"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny recipe, with three forward passes a step: two groups share them unequally."""
    folder = tmp_path_factory.mktemp("recipe")
    text = RECIPE % write_tokens(folder / "tokens.npy")
    text = text.replace("global_batch_size: 4", f"global_batch_size: {BATCH}")
    text = text.replace("steps: 10", f"steps: {STEPS}").replace("interval: 100", "interval: 5")
    (folder / "recipe.yaml").write_text(text + "launch: {nproc_per_node: 1, max_restarts: 20}\n")
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def start(recipe: Path) -> Iterator[Start]:
    """Starts `titanrun train` of the recipe, whose workers have the faults that are given."""
    with start_runs(recipe) as train:
        yield train


@pytest.fixture(scope="module")
def alone(start: Start, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of one process without groups."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    end(start(folder))
    return losses(folder)


def recorded_changes(folder: Path) -> list[dict[str, Any]]:
    """Which groups joined, left or took over a state, as run.json has it."""
    record = json.loads((folder / "run.json").read_text())
    validate(record, json.loads((SCHEMAS / "run.schema.json").read_text()))
    found: list[dict[str, Any]] = record["groups"]
    return found


def read_log(folder: Path, group: int) -> str:
    return (folder / "logs" / f"group-{group}-rank-0.log").read_text()


def test_two_groups_train_as_one_process_does(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    end(start(tmp_path / "run", *GROUPS, "fault_tolerance.min_replica_size=2"))
    check(tmp_path / "run", alone)
    assert {event["groups"] for event in events(tmp_path / "run")} == {2}
    assert (
        len(list((tmp_path / "run").glob("digest-*"))) == 2 and len(digests(tmp_path / "run")) == 1
    )
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("group", "moment"),
    [
        (1, "before the backward pass"),
        (0, "in the all-reduce"),
        (1, "before the commit"),
        pytest.param(0, "before the backward pass", marks=pytest.mark.slow),
        pytest.param(1, "in the all-reduce", marks=pytest.mark.slow),
        pytest.param(0, "before the commit", marks=pytest.mark.slow),
    ],
)
def test_a_group_killed_within_a_step_costs_no_sequence(
    moment: str, group: int, start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    end(
        start(
            folder,
            *GROUPS,
            "fault_tolerance.min_replica_size=2",
            faults=[[group, moment, 8]],
        )
    )
    check(folder, alone)
    assert names(folder, group)[-2:] == ["joined", "healed"]
    # what was killed after it had given the other group all it needs is in the step
    retried = {
        "before the backward pass": [1],
        "in the all-reduce": [0, 1],
        "before the commit": [0],
    }
    assert names(folder, 1 - group).count("retried") in retried[moment]
    assert len(digests(folder)) == 1
    changes = [(item["event"], item["group"]) for item in recorded_changes(folder)]
    assert sorted(changes[:2]) == [("joined", 0), ("joined", 1)]
    assert sorted(changes[2:]) == sorted(
        (event, group) for event in ("left", "joined", "healed")
    ), changes


def test_a_group_that_waits_for_another_one_does_not_hang(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    both, limit = "fault_tolerance.min_replica_size=2", "guard.step_timeout_seconds=6"
    faults = [[1, "before the backward pass", 8]]
    end(start(folder, *GROUPS, both, limit, faults=faults, away=8))
    check(folder, alone)
    assert names(folder, 0).count("joined") == 1


def test_the_other_group_trains_and_writes_on_alone(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    error = end(
        start(
            folder,
            *GROUPS,
            "launch.max_restarts=0",
            faults=[[0, "before the backward pass", 8]],
        )
    )
    assert "replica group 0 is lost" in error
    check(folder, alone)
    manifest = json.loads((folder / "checkpoint" / f"step-{STEPS}" / "manifest.json").read_text())
    layout = manifest["layout"]
    assert (layout["replica_group"], layout["replica_groups"]) == (1, 1)
    *_, last = recorded_changes(folder)
    assert last == {"step": 7, "event": "left", "group": 0, "groups": 1}
    assert f"step 8: 1 of 2 replica groups, 2 before; {DRAWS}" in read_log(folder, 1)


def test_a_run_goes_on_from_what_the_group_saved_that_took_over(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder, lost = tmp_path / "run", [[0, "before the backward pass", 7]]
    process = start(folder, *GROUPS, "launch.max_restarts=0", faults=lost, hold=8)
    wait_for_hold(folder, process, groups=[1])
    os.kill(find_workers(folder, 1)[0], signal.SIGTERM)
    release(folder)
    end(process, 75)
    last = max(losses(folder))
    assert STEPS > last > 7 and (folder / "checkpoint" / f"step-{last}").is_dir()
    end(start(folder, *GROUPS, "fault_tolerance.min_replica_size=2"))
    check(folder, alone)
    said = f"step {last + 1}: 2 of 2 replica groups, 1 before; {DRAWS}"
    assert said in read_log(folder, 0) and said in read_log(folder, 1)


def test_a_group_killed_in_a_save_leaves_no_checkpoint_with_a_name(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    # one group writes until the last step, and dies in the first save
    faults = [[0, "in the save", 5]]
    end(start(folder, *GROUPS, "fault_tolerance.min_replica_size=2", faults=faults))
    assert (folder / "fault-0-in-the-save-5").exists()
    check(folder, alone)
    saved = [path for path in (folder / "checkpoint").iterdir() if path.name.startswith("step-")]
    assert {path.name for path in saved} <= {"step-5", "step-10", f"step-{STEPS}"}
    for checkpoint in saved:
        command = [sys.executable, "-m", "titanrun", "checkpoint", "verify", str(checkpoint)]
        subprocess.run(command, check=True, capture_output=True)


def test_groups_killed_at_random_train_on(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder, moments = tmp_path / "run", random.Random(0)
    process = start(folder, *GROUPS, "launch.max_restarts=100")
    for _ in range(6):
        time.sleep(moments.uniform(1, 6))
        for worker in find_workers(folder, moments.randrange(2)):
            os.kill(worker, signal.SIGKILL)
    end(process)
    check(folder, alone)


@pytest.mark.parametrize("group", [0, 1])
def test_a_group_that_returns_after_the_end_trains_nothing(
    group: int, start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    end(
        start(
            folder,
            *GROUPS,
            "fault_tolerance.min_replica_size=2",
            faults=[[group, "at the end", STEPS]],
        )
    )
    check(folder, alone)
    assert names(folder, group) == ["joined"]


@pytest.mark.parametrize("group", [0, 1])
def test_a_killed_group_that_returns_when_the_other_one_has_finished_trains_nothing(
    group: int, start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    """It has the weights of the start, and would train all again without the other."""
    folder, killed = tmp_path / "run", 4
    faults = [[group, "before the backward pass", killed]]
    end(start(folder, *GROUPS, faults=faults, returns_late=True))
    check(folder, alone)
    steps = [
        event["step"]
        for event in events(folder)
        if event["group"] == group and event["event"] == "committed"
    ]
    assert steps == list(range(1, killed))
    saved = {path.name for path in (folder / "checkpoint").glob("step-*")}
    assert saved == {"step-5", "step-10", f"step-{STEPS}"}
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["step"]) == ("finished", STEPS)


def test_the_last_step_is_saved_though_its_writer_dies(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    end(start(folder, *GROUPS, faults=[[0, "after the commit", STEPS]]))
    check(folder, alone)
    assert (folder / "checkpoint" / f"step-{STEPS}").is_dir()


def test_a_signal_to_one_group_stops_all_at_one_step_and_the_run_goes_on_from_it(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder, *GROUPS, "fault_tolerance.min_replica_size=2", hold=3)
    wait_for_hold(folder, process, groups=[0, 1])
    os.kill(find_workers(folder, 1)[0], signal.SIGTERM)
    release(folder)
    end(process, 75)
    last = {
        max(event["step"] for event in events(folder) if event["group"] == group)
        for group in range(2)
    }
    assert len(last) == 1 and (folder / "checkpoint" / f"step-{last.pop()}").is_dir()
    end(start(folder, *GROUPS, "fault_tolerance.min_replica_size=2"))
    check(folder, alone)


def test_all_groups_killed_go_on_from_the_newest_checkpoint(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    both = "fault_tolerance.min_replica_size=2"
    end(start(tmp_path / "uncut", *GROUPS, both))
    folder = tmp_path / "run"
    process = start(folder, *GROUPS, both, hold=7)
    wait_for_hold(folder, process, groups=[0, 1])
    workers = [*find_workers(folder, 0), *find_workers(folder, 1)]
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    release(folder)
    end(process)
    check(folder, alone)
    # every step has the same groups, so that nothing is added in another order
    assert losses(folder) == losses(tmp_path / "uncut")
    assert digests(folder) == digests(tmp_path / "uncut") and len(digests(folder)) == 1


def test_a_lighthouse_that_dies_is_replaced(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    # within this time of the lighthouse's start no group trains without the other
    long = "fault_tolerance.heartbeat_timeout_ms=5000"
    process = start(folder, "fault_tolerance.enable=true", long, hold=3)
    wait_for_hold(folder, process)
    kill_lighthouse(process)
    release(folder)
    assert "starting it again" in end(process)
    check(folder, alone)


def test_a_group_that_joins_at_a_restarted_lighthouse_takes_its_share(
    start: Start, alone: dict[int, float], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    long = "fault_tolerance.heartbeat_timeout_ms=5000"
    process = start(folder, "fault_tolerance.enable=true", long, held=True)
    wait_for_hold(folder, process, groups=[1])
    log = folder / "logs" / "lighthouse.log"
    with frozen(find_workers(folder, 1)):
        kill_lighthouse(process)
        while log.read_text().count("Lighthouse listening on") < 2 and process.poll() is None:
            time.sleep(0.05)
        (folder / "go").touch()
        while not (folder / "open-0").exists() and process.poll() is None:
            time.sleep(0.05)
        # group 0 asks for a quorum before the lighthouse has heard of group 1
        time.sleep(0.5)
    end(process)
    check(folder, alone)
    committed = [event for event in events(folder) if event["event"] == "committed"]
    groups = {event["step"]: event["groups"] for event in committed}
    assert [groups[step] for step in (3, 4, STEPS)] == [1, 2, 2]
    # group 0 starts from step 0 and does not train alone
    assert min(event["step"] for event in committed if event["group"] == 0) == 4


@pytest.mark.slow
def test_groups_of_two_ranks_that_share_weights_lose_no_sequence(
    start: Start, recipe: Path, tmp_path: Path
) -> None:
    ranks = ("launch.nproc_per_node=2", "training.local_batch_size=1")
    end(start(tmp_path / "alone", *ranks))
    folder = tmp_path / "run"
    end(
        start(
            folder,
            *GROUPS,
            *ranks,
            "fault_tolerance.min_replica_size=2",
            faults=[[1, "in the all-reduce", 8]],
        )
    )
    check(folder, losses(tmp_path / "alone"))
    assert [
        len({(folder / f"digest-{group}-{rank}").read_text() for group in range(2)})
        for rank in range(2)
    ] == [1, 1]
