"""Rows 30 to 32, 59 and 60: two ranks, started by a launcher, of which one hangs or dies."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import seams
from tests.faults.conftest import Note, Run

ROOT = Path(__file__).parents[2]
# the launcher, with workers that put a fault into one rank before they begin
LAUNCHER = """
import sys
from pathlib import Path
from titanrun.launch.local_launcher import run_with_restarts
from titanrun.launch.worker_processes import run_workers
resolved, script = Path(sys.argv[1]), sys.argv[2]
restarts, count = int(sys.argv[3]), int(sys.argv[4])
def run():
    return run_workers(resolved, count, [sys.executable, script])
sys.exit(run_with_restarts(run, resolved.parent, restarts))
"""
WORKER = """
import os, sys
sys.path.insert(0, {root!r})
from tests.faults import seams
if os.environ["RANK"] == "{rank}":
    seams.{seam}(*{arguments!r})
from titanrun.worker.__main__ import main
sys.exit(main())
"""

SHARDS = "parallelism.data_parallel_shard_degree=2"

pytestmark = pytest.mark.slow


def launch(
    resolved: Path,
    rank: int,
    seam: seams.Seam,
    *arguments: object,
    restarts: int = 0,
    count: int = 2,
) -> tuple[int, str]:
    """Trains with a fault on one rank. Returns the launcher's exit code, and what it said."""
    script = resolved.parent / "faulty.py"
    script.write_text(
        WORKER.format(root=str(ROOT), rank=rank, seam=seam.__name__, arguments=arguments)
    )
    command = [
        sys.executable,
        "-c",
        LAUNCHER,
        str(resolved),
        str(script),
        str(restarts),
        str(count),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stderr


def orphans(resolved: Path) -> list[str]:
    """Processes that still train in the run directory."""
    lines = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in lines if str(resolved) in line and "ps -eo" not in line]


def test_row_30_a_rank_that_hangs_ends_the_run_with_stacks(run: Run, note: Note) -> None:
    resolved = run("run", "guard.step_timeout_seconds=5", SHARDS)
    code, said = launch(resolved, 1, seams.hangs_in, 5)
    assert code == 6
    assert "error[hang]: rank" in said
    # what the ranks waited for
    assert "its last collectives in" in said
    assert (resolved.parent / "comm_traces" / "rank_0").exists()
    logs = resolved.parent / "logs"
    assert "seams.py" in "".join(
        path.read_text() for path in [*logs.glob("stacks-rank-1.txt"), logs / "rank-1.log"]
    )
    assert orphans(resolved) == []
    outcome = "exit 6; the stacks of the ranks are in logs/; no process is left"
    note(30, injected="rank 1 of 2 sleeps in step 5", outcome=outcome, lost="one interval")


def test_row_30_a_rank_that_hangs_while_it_is_built_ends_too(run: Run) -> None:
    resolved = run("run", "guard.build_timeout_seconds=3", SHARDS)
    code, said = launch(resolved, 0, seams.building_hangs)
    assert code == 6
    # the other waits for the first one's data, and is watched too, but it is the first that gives
    # no sign of life
    assert (
        "error[hang]: rank 0 hangs: building the run takes longer than guard.build_timeout_seconds"
        in said
    )
    assert orphans(resolved) == []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    "limit", ["guard.step_timeout_seconds=5", "comm.train_timeout_seconds=5"], ids=["step", "comm"]
)
def test_row_59_a_stopped_rank_is_named_by_the_one_that_waits(
    run: Run, note: Note, rank: int, limit: str
) -> None:
    resolved = run("run", limit, SHARDS)
    code, said = launch(resolved, rank, seams.stops_in, 5)
    assert code == 6
    assert f"error[hang]: rank {rank} does not answer" in said
    assert f"rank {rank} failed first; its log is {resolved.parent}/logs/rank-{rank}.log" in said
    assert orphans(resolved) == []
    note(
        59,
        injected="SIGSTOP of rank 0 or 1 of 2 in step 5, with a limit for steps or for collectives",
        outcome="exit 6, the other names the rank that does not answer; no process is left",
        lost="one interval",
    )


def test_row_60_a_rank_that_is_stopped_in_a_save_is_named(run: Run, note: Note) -> None:
    resolved = run("run", "guard.save_timeout_seconds=5", SHARDS)
    code, said = launch(resolved, 1, seams.stops_in_save, 6)
    assert code == 6
    assert "error[hang]: rank 1 does not answer; rank 0 waits: saving a checkpoint takes" in said
    assert orphans(resolved) == []
    code, _ = launch(resolved, 1, seams.nothing)
    assert code == 0
    assert "resuming after step 3" in (resolved.parent / "logs" / "rank-0.log").read_text()
    note(
        60,
        injected="SIGSTOP of rank 1 of 2 while it writes its part of step 6",
        outcome="exit 6, rank 1 is named; resumes after step 3. A save may take ten times as "
        "long as the last one, at least 300 s and at most guard.save_timeout_seconds",
        lost="one interval",
    )


def test_row_31_a_rank_that_dies_is_named_and_the_other_ends(run: Run, note: Note) -> None:
    resolved = run("run", SHARDS)
    death = resolved.parent / "death"
    code, said = launch(resolved, 1, seams.dies_in, 5, str(death))
    ended = time.time()
    assert code == 128 + 9
    # the launcher returns when no rank is left; it kills what has not ended by itself after ten
    # seconds, however slow the machine is
    assert ended - death.stat().st_mtime < 15
    assert "rank 1 was killed by SIGKILL" in said
    assert orphans(resolved) == []
    code, _ = launch(resolved, 1, seams.nothing)
    assert code == 0
    outcome = "the rank is named, the other ends within 15 s; the next start resumes after step 3"
    note(31, injected="SIGKILL of rank 1 of 2 in step 5", outcome=outcome, lost="one interval")


def test_row_32_a_run_that_dies_each_time_is_given_up(run: Run, note: Note) -> None:
    resolved = run()
    code, said = launch(resolved, 0, seams.dies_in, 1, restarts=2, count=1)
    assert code == 128 + 9
    assert said.count("restarting from") == 2
    assert "2 restarts without a new checkpoint: giving up" in said
    note(
        32,
        injected="SIGKILL in step 1 at each start, max_restarts 2",
        outcome="stops after 2 restarts",
        lost="nothing",
    )
