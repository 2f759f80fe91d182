"""The workers of one run on this machine, started and watched: signals go to all of them, and the death of one is that of all."""

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

from titanrun.launch.environment import environment, worker_environment
from titanrun.launch.saying import say
from titanrun.recipe.notice import notify
from titanrun.recipe.run_dir import STATUS, read_json, starting_status, write_json

WORKER = "titanrun.worker"
# a new process dies of these until it listens for them: blocked, they wait, and the worker unblocks them then
HELD_BACK = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
WATCHED = (*HELD_BACK, signal.SIGCHLD, signal.SIGALRM)
# how long the others may take to end after one has failed: those that wait for it in a collective never do
GRACE_SECONDS = 10.0
# how long it takes to write a stack down
STACKS_SECONDS = 0.5
# the first asks for a save, the second for an end, and who has to press a third time wants no more of it
LAST_INTERRUPT = 3
EXIT_PREEMPTED = 75
SHELL_SIGNAL_BASE = 128
PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Worker:
    """One rank's process, the file in which it tells why it failed, and when its end was seen."""

    rank: int
    process: subprocess.Popen[bytes]
    failure_file: Path
    ended: float | None = None

    @property
    def is_running(self) -> bool:
        """Whether its end was not seen yet."""
        return self.ended is None

    @property
    def exit_code(self) -> int:
        """Its exit code, by the shell's convention where a signal ended it."""
        code = self.process.returncode
        return SHELL_SIGNAL_BASE - code if code < 0 else code

    @property
    def has_failed(self) -> bool:
        """Whether it ended, and neither because it was done nor because it was asked to."""
        return not self.is_running and self.exit_code not in (0, EXIT_PREEMPTED)

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)


@dataclass(frozen=True, slots=True)
class Failure:
    """What one rank says of its end. That it lost another rank explains nothing where another rank says more."""

    worker: Worker
    is_of_another: bool
    time: float
    text: str


@dataclass(slots=True)
class Watch:
    """Workers, and what was done to them."""

    workers: list[Worker]
    interrupts: int = 0
    is_ending: bool = field(default=False)

    def until_the_end(self) -> None:
        """Returns when every worker has ended."""
        while True:
            self.notice_ends()
            if not self.running:
                return
            if not self.is_ending and any(worker.has_failed for worker in self.workers):
                self.end_rest()
            self.pass_on(signal.Signals(signal.sigwait(WATCHED)))

    @property
    def running(self) -> list[Worker]:
        """The workers that are left."""
        return [worker for worker in self.workers if worker.is_running]

    def notice_ends(self) -> None:
        """Looks which workers have ended."""
        for worker in self.running:
            if worker.process.poll() is not None:
                worker.ended = time.time()

    def end_rest(self) -> None:
        """Asks the others to end, and gives them some time for it."""
        self.is_ending = True
        self.send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)

    def pass_on(self, number: signal.Signals) -> None:
        """Does with a signal what it asks for."""
        if number == signal.SIGINT:
            self.interrupts += 1
        if number == signal.SIGALRM:
            # first into their logs: where they stand
            self.send(signal.SIGQUIT)
            time.sleep(STACKS_SECONDS)
        if number == signal.SIGALRM or self.interrupts >= LAST_INTERRUPT:
            self.send(signal.SIGKILL)
        elif number in HELD_BACK:
            self.send(number)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to all that are left."""
        for worker in self.running:
            worker.send(number)


def run_workers(
    resolved: Path, count: int, command: Sequence[str] = (sys.executable, "-m", WORKER)
) -> int:
    """Trains the run in `resolved` with `count` workers. Returns the exit code of the first that failed, else that of the first rank."""
    # and no others: those of an earlier start would be blocked in the new workers too
    signal.pthread_sigmask(signal.SIG_SETMASK, HELD_BACK)
    # a signal that is ignored by default would not wait on every system
    signal.signal(signal.SIGCHLD, do_nothing)
    with TemporaryDirectory(prefix="titanrun-") as folder:
        workers: list[Worker] = []
        watch = Watch(workers)
        try:
            with meeting_place() as meeting:
                for rank in range(count):
                    workers.append(
                        start_worker([*command, str(resolved)], rank, count, meeting, Path(folder))
                    )
            # only now: workers inherit what is blocked
            signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
            watch.until_the_end()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            watch.send(signal.SIGKILL)
        return exit_code_of(workers, resolved.parent)


@contextmanager
def meeting_place() -> Iterator[socket.socket]:
    """A listening socket, which the first worker takes over: nobody else can get its port in between."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        yield server


def start_worker(
    command: Sequence[str], rank: int, count: int, meeting: socket.socket, folder: Path
) -> Worker:
    """One rank. The first has the console; what the others print goes to their log."""
    failure_file = folder / f"rank-{rank}.json"
    log = Path(command[-1]).parent / "logs" / f"rank-{rank}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    variables = worker_environment(
        rank, count, port=meeting.getsockname()[1], failure_file=failure_file
    )
    if rank == 0:
        variables["TITANRUN_STORE_SOCKET"] = str(meeting.fileno())
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else output,
            stderr=None if rank == 0 else output,
            pass_fds=[meeting.fileno()] if rank == 0 else [],
            # a group of its own: Ctrl-C reaches this process alone, which passes it on once
            process_group=0,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
    return Worker(rank, process, failure_file)


def end_with_parent() -> None:
    """In a new worker: it is asked to save and stop when the launcher dies, however that happens."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler, so that the signal is not ignored."""


def exit_code_of(workers: list[Worker], run_dir: Path) -> int:
    """The exit code of the run; what the first failing rank says is said once, for all of them."""
    failed = [failure_of(worker) for worker in workers if worker.has_failed]
    if not failed:
        return workers[0].exit_code
    first = min(failed, key=lambda failure: (failure.is_of_another, failure.time))
    log = run_dir / "logs" / f"rank-{first.worker.rank}.log"
    text = f"{first.text}\n  = note: rank {first.worker.rank} failed first; its log is {log}"
    say(text, level="error")
    note_failure(run_dir, first.worker.exit_code)
    if workers[0].has_failed and not read_json(workers[0].failure_file):
        tell(run_dir, first.worker.exit_code, text)
    return first.worker.exit_code


def failure_of(worker: Worker) -> Failure:
    """Why a worker failed, as it told itself, else as its end tells."""
    told = read_json(worker.failure_file)
    assert worker.ended is not None
    if told:
        return Failure(worker, told["is_of_another"], told["time"], told["text"])
    code = worker.process.returncode
    how = (
        f"was killed by {signal.Signals(-code).name}"
        if code < 0
        else f"ended with exit code {code}"
    )
    return Failure(
        worker, False, worker.ended, f"error[internal]: rank {worker.rank} {how} and said nothing"
    )


def note_failure(run_dir: Path, exit_code: int) -> None:
    """Writes into status.json that the run failed and how, where its first rank did not live to do so, or only lost the one that did."""
    # a first rank that was killed before it could write: as what starts a run leaves it
    status = read_json(run_dir / STATUS) or starting_status({})
    if status.get("state") in ("starting", "running", "failed"):
        write_json(run_dir / STATUS, {**status, "state": "failed", "exit_code": exit_code})


def tell(run_dir: Path, exit_code: int, text: str) -> None:
    """Tells whoever wants to know that the run has failed, in the place of its first rank."""
    step = read_json(run_dir / STATUS).get("step", 0)
    untold = notify(
        environment(), run_dir, state="failed", step=step, exit_code=exit_code, message=text
    )
    if untold is not None:
        say(untold, level="warning")
