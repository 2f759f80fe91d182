"""Workers of one run on this machine, started and monitored.

Signals are forwarded to all of them, and all end if one dies.
"""

import ctypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from titanrun.config.exit_codes import EXIT_PREEMPTED, SHELL_SIGNAL_BASE
from titanrun.distributed.spec.rank_files import build_file_stem
from titanrun.distributed.spec.run_signals import list_run_signals
from titanrun.launch.host_address import LOOPBACK
from titanrun.launch.launch_env import (
    GroupPlace,
    build_group_environment,
    build_worker_environment,
    get_environment,
)
from titanrun.launch.launcher_log import log_line
from titanrun.recipe.rundir.run_files import (
    STATUS,
    build_starting_status,
    read_json_or_empty,
    write_indented_json,
)
from titanrun.recipe.rundir.run_notification import run_notify_command

WORKER = "titanrun.worker"
# time for the others to end after one has failed: those that wait for it in a collective never do
GRACE_SECONDS = 10.0
# time to write a stack trace
STACK_DUMP_SECONDS = 0.5
# the first Ctrl-C requests a save, the second the end, and the third kills
MAX_INTERRUPTS = 3
PR_SET_PDEATHSIG = 1
CRASHED = "a library crashed in the rank; the end of its log may say where"
KILL_HINTS = {
    signal.SIGKILL: "the system does that when memory runs out (see dmesg), and a scheduler at its "
    "limits: give the run more memory, or lower training.local_batch_size",
    **dict.fromkeys(
        (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL), CRASHED
    ),
}


@dataclass(slots=True)
class WorkerProcess:
    """Process of one rank, its failure report file, and the time at which its end was seen.

    `group` is the number of its replica group, None if the run has none.
    """

    rank: int
    process: subprocess.Popen[bytes]
    failure_file: Path
    end_time: float | None = None
    group: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether its end has not been seen yet."""
        return self.end_time is None

    @property
    def exit_code(self) -> int:
        """Exit code; if a signal ended the process, by the convention of the shell."""
        code = self.process.returncode
        return SHELL_SIGNAL_BASE - code if code < 0 else code

    @property
    def has_failed(self) -> bool:
        """Whether it ended neither normally nor on request."""
        return not self.is_running and self.exit_code not in (0, EXIT_PREEMPTED)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)


@dataclass(frozen=True, slots=True)
class WorkerFailureReport:
    """Report of one rank about its end.

    The loss of another rank explains nothing if another rank reports more. `rank` is the one that
    failed: another one if that does not answer and cannot report.
    """

    worker: WorkerProcess
    rank: int
    is_peer_failure: bool
    time: float
    text: str


@dataclass(slots=True)
class WorkerMonitor:
    """Monitor of workers and of the signals sent to them."""

    workers: list[WorkerProcess]
    num_interrupts: int = 0
    is_ending: bool = field(default=False)

    def wait_all(self) -> None:
        """Wait until every worker has ended."""
        monitored = list_monitored_signals()
        while True:
            self.poll_workers()
            if not self.running_workers:
                return
            if not self.is_ending and any(worker.has_failed for worker in self.workers):
                self.terminate_rest()
            self.handle_signal(signal.Signals(signal.sigwait(monitored)))

    @property
    def running_workers(self) -> list[WorkerProcess]:
        """Workers that are still running."""
        return [worker for worker in self.workers if worker.is_running]

    def poll_workers(self) -> None:
        """Check which workers have ended."""
        for worker in self.running_workers:
            if worker.process.poll() is not None:
                worker.end_time = time.time()

    def terminate_rest(self) -> None:
        """Ask the remaining workers to end, and give them some time."""
        self.is_ending = True
        self.send_signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def handle_signal(self, number: signal.Signals) -> None:
        """Handle a signal to the launcher."""
        if number == signal.SIGINT:
            self.num_interrupts += 1
        if number == signal.SIGALRM:
            # first write their stacks to their logs
            self.send_signal(signal.SIGQUIT)
            time.sleep(STACK_DUMP_SECONDS)
        if number == signal.SIGALRM or self.num_interrupts >= MAX_INTERRUPTS:
            self.send_signal(signal.SIGKILL)
        elif number in list_run_signals():
            self.send_signal(number)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to all remaining workers."""
        for worker in self.running_workers:
            worker.send_signal(number)


def run_workers(
    resolved: Path,
    num_workers: int,
    command: Sequence[str] = (sys.executable, "-m", WORKER),
    *,
    lifeline: int | None = None,
) -> int:
    """Train the run in `resolved` with `num_workers` workers.

    `lifeline` is the reading end of a pipe that the first rank's own processes outlive it by.
    Return the exit code of the first that failed, else that of the first rank.
    """
    # they kill a new process before it has handlers: they stay pending until the worker unblocks
    # them. Only these: those of an earlier start would be blocked in the new workers too
    signal.pthread_sigmask(signal.SIG_SETMASK, list_run_signals())
    # a signal that is ignored by default would not stay pending on every system
    signal.signal(signal.SIGCHLD, do_nothing)
    with TemporaryDirectory(prefix="titanrun-") as folder:
        workers: list[WorkerProcess] = []
        watch = WorkerMonitor(workers)
        try:
            with listen_for_rendezvous() as meeting:
                for rank in range(num_workers):
                    workers.append(
                        spawn_worker(
                            [*command, str(resolved)],
                            rank,
                            num_workers,
                            meeting,
                            Path(folder),
                            lifeline=lifeline,
                        )
                    )
            # only now: workers inherit the blocked signals
            signal.pthread_sigmask(signal.SIG_BLOCK, list_monitored_signals())
            watch.wait_all()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watch.send_signal(signal.SIGKILL)
        return get_run_exit_code(workers, resolved.parent)


@contextmanager
def listen_for_rendezvous(host: str = LOOPBACK.address) -> Iterator[socket.socket]:
    """Open a listening socket for the first worker, so that no other process takes its port."""
    with socket.create_server((host, 0), backlog=1024) as server:
        yield server


def spawn_worker(
    command: Sequence[str],
    rank: int,
    num_workers: int,
    rendezvous_socket: socket.socket,
    folder: Path,
    place: GroupPlace | None = None,
    *,
    lifeline: int | None = None,
) -> WorkerProcess:
    """Start one rank. The first has the console; the output of the others goes to their log.

    `place` is its replica group, in which `rank` counts.
    """
    group = None if place is None else place.group
    stem = build_file_stem(rank, group)
    failure_file = folder / f"{stem}.json"
    log = Path(command[-1]).parent / "logs" / f"{stem}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    own = LOOPBACK if place is None else place.own
    variables = build_worker_environment(
        rank,
        num_workers,
        host=own.address,
        interface=own.interface,
        port=rendezvous_socket.getsockname()[1],
        failure_file=failure_file,
    )
    if place is not None:
        variables |= build_group_environment(place, rank, num_workers)
    has_console = rank == 0 and (place is None or place.index == 0)
    inherited = {"TITANRUN_STORE_SOCKET": rendezvous_socket.fileno(), "TITANRUN_LIFELINE": lifeline}
    passed = {
        name: number for name, number in inherited.items() if rank == 0 and number is not None
    }
    variables |= {name: str(number) for name, number in passed.items()}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=None if has_console else output,
            stderr=None if has_console else output,
            pass_fds=tuple(passed.values()),
            # separate process group: Ctrl-C reaches only this process, which forwards it once
            process_group=0,
            preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
        )
    return WorkerProcess(rank, process, failure_file, group=group)


def set_parent_death_signal() -> None:
    """Request a signal to save and stop if the launcher dies. Runs in a new worker.

    This holds however the launcher dies.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def list_monitored_signals() -> list[signal.Signals]:
    """Return the signals that a launcher waits for."""
    return [*list_run_signals(), signal.SIGCHLD, signal.SIGALRM]


def do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal without effect, so that it is not ignored by default."""


def get_run_exit_code(workers: list[WorkerProcess], run_dir: Path) -> int:
    """Return the exit code of the run; print the report of the first failing rank once."""
    first = find_first_failure(workers)
    if first is None:
        return workers[0].exit_code
    text = report_first_failure(first, run_dir)
    record_failure_status(run_dir, first.worker.exit_code)
    if workers[0].has_failed and not read_json_or_empty(workers[0].failure_file):
        report_failure(run_dir, first.worker.exit_code, text)
    return first.worker.exit_code


def find_first_failure(workers: Sequence[WorkerProcess]) -> WorkerFailureReport | None:
    """Return the failure that explains those of the other workers, None if none failed."""
    failed = [get_worker_failure(worker) for worker in workers if worker.has_failed]
    return min(failed, key=lambda failure: (failure.is_peer_failure, failure.time), default=None)


def report_first_failure(first: WorkerFailureReport, run_dir: Path) -> str:
    """Print why a rank failed and where its log is, and return the text."""
    log = run_dir / "logs" / f"{build_file_stem(first.rank, first.worker.group)}.log"
    rank = format_rank(first.rank, first.worker.group)
    text = f"{first.text}\n  = note: {rank} failed first; its log is {log}"
    log_line(text, level="error")
    return text


def get_worker_failure(worker: WorkerProcess) -> WorkerFailureReport:
    """Return the reason for a worker's failure: its own report, else its exit code."""
    told = read_json_or_empty(worker.failure_file)
    assert worker.end_time is not None
    if told:
        rank = told.get("rank", worker.rank)
        return WorkerFailureReport(worker, rank, told["is_of_another"], told["time"], told["text"])
    text = format_silent_end(format_rank(worker.rank, worker.group), worker.process.returncode)
    return WorkerFailureReport(worker, worker.rank, False, worker.end_time, text)


def format_silent_end(rank: str, code: int) -> str:
    """Format the end of a rank that reported nothing, by the return code of its process."""
    if code >= 0:
        return f"error[internal]: {rank} ended with exit code {code} without a message"
    number = signal.Signals(-code)
    text = f"error[killed]: {rank} was killed by {number.name}"
    hint = KILL_HINTS.get(number)
    return text if hint is None else f"{text}\n  = help: {hint}"


def format_rank(rank: int, group: int | None) -> str:
    """Format which rank it is, in its replica group if the run has groups."""
    return f"rank {rank}" if group is None else f"rank {rank} of replica group {group}"


def record_failure_status(run_dir: Path, exit_code: int) -> None:
    """Record the failure in status.json if the first rank could not.

    It was killed, or it only lost the rank that failed.
    """
    # the first rank was killed before it could write: status.json is unchanged since the start
    status = read_json_or_empty(run_dir / STATUS) or build_starting_status({})
    if status.get("state") in ("starting", "running", "failed"):
        write_indented_json(run_dir / STATUS, {**status, "state": "failed", "exit_code": exit_code})


def report_failure(run_dir: Path, exit_code: int, text: str) -> None:
    """Run the notify command for a failed run in place of its first rank."""
    step = read_json_or_empty(run_dir / STATUS).get("step", 0)
    untold = run_notify_command(
        get_environment(), run_dir, state="failed", step=step, exit_code=exit_code, message=text
    )
    if untold is not None:
        log_line(untold, level="warning")


@contextmanager
def restore_signal_mask() -> Iterator[None]:
    """Within the block, block only what a new process has to unblock when it has handlers.

    And the alarm, which has no handler and would end this process.
    """
    blocked = [*list_run_signals(), signal.SIGALRM]
    before = signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
