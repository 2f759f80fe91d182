"""A worker that kills itself where FAULTS says, once for each: python faulty_worker.py RESOLVED.

FAULTS is a JSON list of [group, moment, step]. With HELD, group 0 opens once the file go exists,
and group 1 waits for it before its fourth step. A group that was killed comes back after
AWAY_SECONDS. With RETURNS_LATE it joins after the end of the other group, which trains on once it
has loaded its state. At its end a rank leaves the digest of its state.
"""

import hashlib
import json
import os
import re
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from titanrun.distributed import replica_groups
from titanrun.distributed.dtensor import to_local
from titanrun.distributed.replica_groups import ReplicaGroups
from titanrun.distributed.step_attempt import StepAttempt
from titanrun.training.replicas import synced_source
from titanrun.training.replicas.synced_source import SyncedSource

FOLDER = Path(sys.argv[1]).parent
GROUP, RANK = int(os.environ["TITANRUN_GROUP"]), int(os.environ["RANK"])
FLUSH = os.fsync
FAULTS = json.loads(os.environ.get("FAULTS", "[]"))
HELD = "HELD" in os.environ
RETURNS_LATE = "RETURNS_LATE" in os.environ
AWAY_SECONDS = int(os.environ.get("AWAY_SECONDS", "0"))


class FaultyGroups(ReplicaGroups):
    """Replica groups with faults in front of, within and behind what they do for a step."""

    step, synced_step = 0, 0

    def open(self, step: int) -> None:
        if HELD and GROUP == 0:
            wait_for(FOLDER / "go")
        if any(FOLDER.glob(f"fault-{GROUP}-*")):
            time.sleep(AWAY_SECONDS)
            if RETURNS_LATE:
                (FOLDER / f"back-{GROUP}").touch()
                wait_for(FOLDER / f"digest-{1 - GROUP}-0")
        super().open(step)
        if FAULTS and RANK == 0:
            wait_for_other_group()
        if HELD:
            (FOLDER / f"open-{GROUP}").touch()

    def start_attempt(self) -> StepAttempt:
        if HELD and self.step == 3:
            (FOLDER / f"held-{GROUP}").touch()
            wait_for(FOLDER / "open-0")
            time.sleep(1)
        if RETURNS_LATE and any(FOLDER.glob(f"fault-{1 - GROUP}-*")):
            wait_for(FOLDER / f"back-{1 - GROUP}")
        found = super().start_attempt()
        self.step = self.synced_step or found.step + 1
        die("before the backward pass", self.step)
        return found

    def all_reduce_sum_(self, tensor: Tensor) -> Tensor:
        if tensor.numel() > 1000:
            assert self._manager is not None
            if is_due("in the all-reduce", self.step):
                self._manager.allreduce(tensor)
            die("in the all-reduce", self.step)
        return super().all_reduce_sum_(tensor)

    def start_average(self, tensor: Tensor) -> Any:
        die("in the sync", self.step)
        return super().start_average(tensor)

    def should_commit(self) -> bool:
        die("before the commit", self.step)
        found = super().should_commit()
        die("after the commit", self.step)
        return found

    def close(self) -> None:
        if self._manager is not None:
            save = next(save for name, _, save in self._states if name == "tensors")
            found = hashlib.sha256()
            for name, tensor in sorted(save().items()):
                # between syncs, each group has an optimizer state of its own
                if name.startswith("model.") or not self.synced_step:
                    found.update(name.encode() + to_local(tensor).numpy().tobytes())
            (FOLDER / f"digest-{GROUP}-{RANK}").write_text(found.hexdigest())
        super().close()
        die("at the end", self.step)


class FaultySource(SyncedSource):
    """Source of a group's steps that dies between two syncs."""

    def on_update(self, step: int) -> None:
        FaultyGroups.synced_step = step
        die("between syncs", step)
        super().on_update(step)


def flush_or_die(descriptor: int) -> None:
    """Flush a file, or die where it belongs to a checkpoint that is being written."""
    folder = re.search(r"/step-(\d+)\.tmp-", str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    if folder:
        die("in the save", int(folder[1]))
    FLUSH(descriptor)


def wait_for_other_group() -> None:
    """Wait until both groups have begun, so that none trains to the end before a fault is due."""
    (FOLDER / f"open-{GROUP}").touch()
    wait_for(FOLDER / f"open-{1 - GROUP}")


def wait_for(file: Path) -> None:
    end = time.monotonic() + 240
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)


def is_due(moment: str, step: int) -> bool:
    mark = FOLDER / f"fault-{GROUP}-{moment.replace(' ', '-')}-{step}"
    return RANK == 0 and [GROUP, moment, step] in FAULTS and not mark.exists()


def die(moment: str, step: int) -> None:
    if is_due(moment, step):
        (FOLDER / f"fault-{GROUP}-{moment.replace(' ', '-')}-{step}").touch()
        os.kill(os.getpid(), signal.SIGKILL)


faulty_flush: Any = flush_or_die
os.fsync = faulty_flush
faulty: Any = FaultyGroups
replica_groups.ReplicaGroups = faulty
faulty_source: Any = FaultySource
synced_source.SyncedSource = faulty_source
runpy.run_module("titanrun.worker", run_name="__main__")
