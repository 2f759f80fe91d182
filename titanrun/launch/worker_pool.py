"""Short-lived local worker pool for one command, which leaves nothing on the disk."""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from titanrun.launch.launch_env import build_worker_environment
from titanrun.launch.launcher_log import log_line
from titanrun.launch.worker_processes import (
    GRACE_SECONDS,
    WorkerProcess,
    get_worker_failure,
    listen_for_rendezvous,
    set_parent_death_signal,
)

POLL_SECONDS = 0.05


def run_worker_pool(module: str, job: str, num_workers: int) -> int:
    """Run `titanrun.worker.<module>` in `num_workers` processes, each with `job` on stdin.

    The first has the console. Return the exit code. The report of the first failing process is
    printed once, for all of them.
    """
    sys.stdout.flush()
    with (
        TemporaryDirectory(prefix="titanrun-") as folder,
        start_pool_workers(module, job, num_workers, Path(folder)) as workers,
    ):
        wait_for_pool(workers)
        failed = [get_worker_failure(worker) for worker in workers if worker.has_failed]
    if not failed:
        return 0
    first = min(failed, key=lambda failure: (failure.is_peer_failure, failure.time))
    log_line(first.text.rstrip(), level="error")
    return first.worker.exit_code


@contextmanager
def start_pool_workers(
    module: str, job: str, num_workers: int, folder: Path
) -> Iterator[list[WorkerProcess]]:
    """Start the processes, all of which end with the block."""
    file = folder / "job.json"
    file.write_text(job, encoding="utf-8")
    workers: list[WorkerProcess] = []
    try:
        with listen_for_rendezvous() as meeting:
            for rank in range(num_workers):
                failure_file = folder / f"rank-{rank}.json"
                variables = build_worker_environment(
                    rank, num_workers, port=meeting.getsockname()[1], failure_file=failure_file
                )
                if rank == 0:
                    variables["TITANRUN_STORE_SOCKET"] = str(meeting.fileno())
                with file.open("rb") as stdin:
                    process = subprocess.Popen(
                        [sys.executable, "-m", f"titanrun.worker.commands.{module}"],
                        env=variables,
                        stdin=stdin,
                        stdout=None if rank == 0 else subprocess.DEVNULL,
                        stderr=None if rank == 0 else subprocess.DEVNULL,
                        pass_fds=[meeting.fileno()] if rank == 0 else [],
                        # separate process group: Ctrl-C reaches only this process, which ends them
                        process_group=0,
                        preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
                    )
                workers.append(WorkerProcess(rank, process, failure_file))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


def wait_for_pool(workers: Sequence[WorkerProcess]) -> None:
    """Wait until all have ended; after a failure give the others a limited time.

    They may wait for the failed process forever.
    """
    deadline: float | None = None
    while running := [worker for worker in workers if worker.is_running]:
        for worker in running:
            if worker.process.poll() is not None:
                worker.end_time = time.time()
        if deadline is None and any(worker.has_failed for worker in workers):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            for worker in running:
                worker.process.kill()
        time.sleep(POLL_SECONDS)
