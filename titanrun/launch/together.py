"""A command's processes on this machine that do one job together, and end together: nothing of them stays on the disk."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from titanrun.launch.environment import worker_environment
from titanrun.launch.saying import say
from titanrun.launch.workers import (
    GRACE_SECONDS,
    Worker,
    end_with_parent,
    failure_of,
    meeting_place,
)

LOOK_SECONDS = 0.05


def do_together(module: str, job: str, count: int) -> int:
    """Runs `titanrun.worker.<module>` in so many processes, each with `job` on stdin. The first has the console. Returns the exit code.

    What the first failing process says is said once, for all of them.
    """
    sys.stdout.flush()
    with (
        TemporaryDirectory(prefix="titanrun-") as folder,
        started(module, job, count, Path(folder)) as workers,
    ):
        wait_for(workers)
        failed = [failure_of(worker) for worker in workers if worker.has_failed]
    if not failed:
        return 0
    first = min(failed, key=lambda failure: (failure.is_of_another, failure.time))
    say(first.text.rstrip(), level="error")
    return first.worker.exit_code


@contextmanager
def started(module: str, job: str, count: int, folder: Path) -> Iterator[list[Worker]]:
    """The processes, none of which outlives the block."""
    file = folder / "job.json"
    file.write_text(job, encoding="utf-8")
    workers: list[Worker] = []
    try:
        with meeting_place() as meeting:
            for rank in range(count):
                failure_file = folder / f"rank-{rank}.json"
                variables = worker_environment(
                    rank, count, port=meeting.getsockname()[1], failure_file=failure_file
                )
                if rank == 0:
                    variables["TITANRUN_STORE_SOCKET"] = str(meeting.fileno())
                with file.open("rb") as stdin:
                    process = subprocess.Popen(
                        [sys.executable, "-m", f"titanrun.worker.{module}"],
                        env=variables,
                        stdin=stdin,
                        stdout=None if rank == 0 else subprocess.DEVNULL,
                        stderr=None if rank == 0 else subprocess.DEVNULL,
                        pass_fds=[meeting.fileno()] if rank == 0 else [],
                        # a group of its own: Ctrl-C reaches this process alone, which ends them
                        process_group=0,
                        preexec_fn=end_with_parent if sys.platform == "linux" else None,
                    )
                workers.append(Worker(rank, process, failure_file))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def wait_for(workers: Sequence[Worker]) -> None:
    """Returns when all have ended. Once one has failed the others get some time, and no more: they may wait for it for ever."""
    deadline: float | None = None
    while running := [worker for worker in workers if worker.is_running]:
        for worker in running:
            if worker.process.poll() is not None:
                worker.ended = time.time()
        if deadline is None and any(worker.has_failed for worker in workers):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for worker in running:
                worker.process.kill()
        time.sleep(LOOK_SECONDS)
