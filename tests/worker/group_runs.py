"""Runs of replica groups on this machine whose workers kill themselves, and what they leave."""

import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.worker.held_runs import build_hold

GROUPS = (
    "fault_tolerance.enable=true",
    "fault_tolerance.heartbeat_timeout_ms=1000",
)
TRAIN = """
import sys
from functools import partial
from titanrun.cli import train
from titanrun.cli.main import main
train.start_replica_groups = partial(
    train.start_replica_groups, command=[sys.executable, sys.argv.pop(1)]
)
sys.exit(main())
"""
BATCH, PIECES = 6, 3
Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def start_runs(recipe: Path) -> Iterator[Start]:
    """Give what starts `titanrun train` of the recipe, and end all that was started.

    With `hold`, each group waits after that step, see `tests.worker.held_runs`.
    """
    started: list[subprocess.Popen[str]] = []

    def train(
        folder: Path,
        *overrides: str,
        faults: list[Any] | None = None,
        held: bool = False,
        hold: int | None = None,
        away: int = 0,
        returns_late: bool = False,
    ) -> Any:
        command = [sys.executable, "-c", TRAIN, str(Path(__file__).with_name("faulty_worker.py"))]
        started.append(
            subprocess.Popen(
                [*command, "train", str(recipe), f"dump_folder={folder}", *overrides],
                env={
                    **os.environ,
                    "FAULTS": json.dumps(faults or []),
                    "OMP_NUM_THREADS": "1",
                    "AWAY_SECONDS": str(away),
                    **({"HELD": "1"} if held else {}),
                    **({} if hold is None else build_hold(hold)),
                    **({"RETURNS_LATE": "1"} if returns_late else {}),
                },
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    try:
        yield train
    finally:
        for process in started:
            process.kill()


def end(process: subprocess.Popen[str], code: int = 0) -> str:
    _, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    return error


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step; no step is written twice."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert len(set(steps)) == len(steps)
    return {line["step"]: line["loss"] for line in lines}


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        {**json.loads(line), "group": int(file.stem[-1])}
        for file in sorted((folder / "logs").glob("group-?.jsonl"))
        for line in file.read_text().splitlines()
    ]


def names(folder: Path, group: int) -> list[str]:
    return [
        event["event"]
        for event in events(folder)
        if event["group"] == group and event["event"] != "committed"
    ]


def digests(folder: Path) -> set[str]:
    return {file.read_text() for file in folder.glob("digest-*")}


def find_workers(folder: Path, group: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = ((process / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if str(folder).encode() in command and f"\0TITANRUN_GROUP={group}\0".encode() in variables:
            found.append(int(process.name))
    return found


def kill_lighthouse(process: subprocess.Popen[str]) -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (lighthouse,) = (
        child
        for child in children
        if b"titanrun.worker.lighthouse" in Path(f"/proc/{child}/cmdline").read_bytes()
    )
    os.kill(int(lighthouse), signal.SIGKILL)


@contextmanager
def frozen(workers: list[int]) -> Iterator[None]:
    """Stop processes in the block: nothing is heard of them."""
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGCONT)


def check(folder: Path, alone: dict[int, float]) -> None:
    """Every sequence of every step was trained once, and the losses are those of one process."""
    found = losses(folder)
    assert found.keys() == alone.keys()
    assert max(abs(found[step] - alone[step]) / alone[step] for step in alone) < 1e-5
    # a step that was repeated from a checkpoint counts as its groups trained it last
    shares: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    for event in events(folder):
        if event["event"] == "committed":
            assert event["first_row"] == (event["step"] - 1) * BATCH
            shares[event["step"], event["groups"]][event["group"]] = event["pieces"]
    assert {step for step, _ in shares} == set(alone)
    for (_, count), dealt in shares.items():
        allowed = [list(range(index, PIECES, count)) for index in range(count)]
        assert all(pieces in allowed for pieces in dealt.values())
        assert count == 1 or len(dealt) < count or sorted(dealt.values()) == sorted(allowed)
