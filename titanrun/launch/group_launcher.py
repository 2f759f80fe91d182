"""Replica groups of a run on this machine: their lighthouse, and a restart of each that fails."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.json_text import parse_json
from titanrun.config.problems import problem_error
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.spec.run_signals import SAVE_SIGNAL, list_run_signals
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.launch_env import GroupPlace, get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.launch.local_launcher import is_restartable, log_note
from titanrun.launch.worker_processes import (
    EXIT_PREEMPTED,
    GRACE_SECONDS,
    MAX_INTERRUPTS,
    WORKER,
    WorkerMonitor,
    WorkerProcess,
    do_nothing,
    find_first_failure,
    list_monitored_signals,
    listen_for_rendezvous,
    record_failure_status,
    report_first_failure,
    set_parent_death_signal,
    spawn_worker,
)
from titanrun.recipe.rundir.run_files import STATUS, read_json_or_empty
from titanrun.recipe.rundir.run_lock import lock_run_directory
from titanrun.recipe.rundir.run_notification import run_notify_command

LIGHTHOUSE = "titanrun.worker.lighthouse"
EXIT_INTERNAL = 70


def start_replica_groups(
    launch: LocalLaunchConfig,
    config: FaultToleranceConfig,
    *,
    resolved: Path,
    processes: int,
    command: Sequence[str] = (sys.executable, "-m", WORKER),
) -> int:
    """Train the run in `resolved` with groups of `processes` workers, and return the exit code.

    `command` starts a worker.

    Raises:
        ProblemsFound: another process writes into the run directory.
    """
    drain_console()
    run_dir = resolved.parent
    (run_dir / "logs").mkdir(exist_ok=True)
    signal.signal(signal.SIGCHLD, do_nothing)
    with lock_run_directory(run_dir), TemporaryDirectory(prefix="titanrun-") as folder:
        lighthouse = Lighthouse(config, run_dir / "logs" / "lighthouse.log")
        groups = [
            ReplicaGroup(
                number,
                launch.max_restarts,
                resolved=resolved,
                num_workers=processes,
                num_groups=config.group_size,
                reports=Path(folder),
                command=command,
            )
            for number in range(config.group_size)
        ]
        try:
            code = GroupMonitor(groups, lighthouse, config.min_replica_size, run_dir).run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for group in groups:
                group.kill()
            lighthouse.kill()
    report_end(run_dir, code)
    return code


class Lighthouse:
    """Process at which the groups find each other, replaced if it ends.

    Args:
        config: the section of the recipe.
        log: file for its messages.
    """

    def __init__(self, config: FaultToleranceConfig, log: Path) -> None:
        self._config, self._log = config, log
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it, at its former port if it had one."""
        port = int(self.address.rpartition(":")[2] or 0)
        with self._log.open("ab") as output, restore_signal_mask():
            self._process = subprocess.Popen(
                [sys.executable, "-m", LIGHTHOUSE, *build_lighthouse_arguments(self._config, port)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                process_group=0,
                preexec_fn=set_parent_death_signal if sys.platform == "linux" else None,
            )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        if not self.address:
            raise problem_error(
                "internal",
                "the lighthouse of the replica groups did not start",
                path=("fault_tolerance",),
                hint=f"see {self._log}",
            )

    @property
    def has_ended(self) -> bool:
        """Whether it is not running."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """End it, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def build_lighthouse_arguments(config: FaultToleranceConfig, port: int) -> list[str]:
    """Build the arguments of `titanrun.worker.lighthouse`. Port 0 is a free one."""
    numbers = (
        port,
        config.min_replica_size,
        config.join_timeout_ms,
        config.heartbeat_timeout_ms,
    )
    return [str(number) for number in numbers]


@dataclass(slots=True)
class ReplicaGroup:
    """Workers of one group, and how often they were started again without a new step.

    Args:
        number: number of the group.
        max_restarts: restarts without a new step after which it is given up.
        resolved: path of resolved.yaml.
        num_workers: ranks of the group.
        num_groups: groups of the run.
        reports: folder of the failure reports of its ranks.
        command: starts a worker, with the path of resolved.yaml behind it.
    """

    number: int
    max_restarts: int
    resolved: Path
    num_workers: int
    num_groups: int
    reports: Path
    command: Sequence[str]
    workers: list[WorkerProcess] = field(default_factory=list)
    exit_code: int | None = None
    _num_restarts: int = 0
    _last_step: int = 0

    def start(self, lighthouse: str) -> None:
        """Start its workers."""
        self.workers, self.exit_code = [], None
        place = GroupPlace(self.number, self.num_groups, lighthouse)
        command = [*self.command, str(self.resolved)]
        with restore_signal_mask(), listen_for_rendezvous() as meeting:
            for rank in range(self.num_workers):
                for report in self.reports.glob(f"group-{self.number}-rank-{rank}.json"):
                    report.unlink()
                self.workers.append(
                    spawn_worker(command, rank, self.num_workers, meeting, self.reports, place)
                )

    def poll(self) -> bool:
        """Check which workers have ended. Return whether one of them failed and others run."""
        monitor = WorkerMonitor(self.workers)
        monitor.poll_workers()
        if self.workers and self.exit_code is None and not monitor.running_workers:
            first = find_first_failure(self.workers)
            if first is not None:
                report_first_failure(first, self.resolved.parent)
            self.exit_code = (self.workers[0] if first is None else first.worker).exit_code
        return bool(monitor.running_workers) and any(worker.has_failed for worker in self.workers)

    def take_restart(self) -> bool:
        """Return whether it may be started again after its failure, and count that restart."""
        assert self.exit_code is not None
        step = read_last_commit(self.resolved.parent, self.number)
        if step > self._last_step:
            self._num_restarts, self._last_step = 0, step
        if not is_restartable(self.exit_code) or self._num_restarts >= self.max_restarts:
            return False
        self._num_restarts += 1
        log_note(
            f"replica group {self.number} ended with exit code {self.exit_code}: restarting it "
            f"(restart {self._num_restarts} of {self.max_restarts} without a new step)"
        )
        return True

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to its running workers."""
        WorkerMonitor(self.workers).send_signal(number)

    def kill(self) -> None:
        """End its workers, and wait for their end."""
        self.send_signal(signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait()


@dataclass(slots=True)
class GroupMonitor:
    """Monitor of all groups, their lighthouse, and the signals sent to them.

    Args:
        groups: groups of the run.
        lighthouse: their lighthouse.
        min_groups: groups without which no step is trained.
        run_dir: run directory.
    """

    groups: Sequence[ReplicaGroup]
    lighthouse: Lighthouse
    min_groups: int
    run_dir: Path
    _num_interrupts: int = 0
    _is_stopping: bool = False
    _has_time_limit: bool = False
    _first_lost_code: int | None = None

    def run(self) -> int:
        """Start the groups and wait for their end. Return the exit code of the run."""
        # the groups answer a signal during the start, with a status and a checkpoint
        signal.pthread_sigmask(signal.SIG_BLOCK, list_monitored_signals())
        self.lighthouse.start()
        for group in self.groups:
            group.start(self.lighthouse.address)
        while True:
            self._poll()
            if not self._running_groups:
                return self._get_exit_code()
            self._handle_signal(signal.Signals(signal.sigwait(list_monitored_signals())))

    @property
    def _running_groups(self) -> list[ReplicaGroup]:
        return [group for group in self.groups if group.exit_code is None]

    def _poll(self) -> None:
        """Replace what has ended, and limit the time of groups that have lost a rank."""
        if self.lighthouse.has_ended:
            log_note("the lighthouse of the replica groups ended: starting it again")
            self.lighthouse.start()
        before = self._running_groups
        is_incomplete = [group.poll() for group in self.groups]
        if any(is_incomplete) and not self._has_time_limit:
            self._has_time_limit = True
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        for group in before:
            if group.exit_code not in (None, 0, EXIT_PREEMPTED) and not self._is_stopping:
                self._replace(group)

    def _replace(self, group: ReplicaGroup) -> None:
        """Start a failed group again, or give up where too few are left."""
        if group.take_restart():
            group.start(self.lighthouse.address)
            # those that finished before the last checkpoint was saved are needed for a step again
            for other in self.groups if not has_run_finished(self.run_dir) else ():
                if other.exit_code == 0:
                    other.start(self.lighthouse.address)
            return
        log_note(f"replica group {group.number} is lost")
        self._first_lost_code = self._first_lost_code or group.exit_code
        ended = [other for other in self.groups if other.exit_code not in (None, 0)]
        if len(self.groups) - len(ended) < self.min_groups:
            self._is_stopping = True
            for other in self._running_groups:
                other.send_signal(signal.SIGKILL)

    def _handle_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGALRM:
            self._has_time_limit = False
            for group in self.groups:
                if any(worker.has_failed for worker in group.workers):
                    group.send_signal(signal.SIGKILL)
            return
        if number not in list_run_signals():
            return
        self._is_stopping = self._is_stopping or number != SAVE_SIGNAL
        self._num_interrupts += number == signal.SIGINT
        for group in self._running_groups:
            group.send_signal(signal.SIGKILL if self._num_interrupts >= MAX_INTERRUPTS else number)

    def _get_exit_code(self) -> int:
        """Return 0 or 75 if one group came to that end, else the code of the first that failed."""
        codes = [group.exit_code for group in self.groups if group.exit_code is not None]
        if 0 in codes and has_run_finished(self.run_dir):
            return 0
        if EXIT_PREEMPTED in codes:
            return EXIT_PREEMPTED
        code = self._first_lost_code or next((code for code in codes if code), EXIT_INTERNAL)
        record_failure_status(self.run_dir, code)
        return code


def has_run_finished(run_dir: Path) -> bool:
    """Return whether the last checkpoint of the run is saved."""
    return read_json_or_empty(run_dir / STATUS).get("state") == "finished"


def read_last_commit(run_dir: Path, group: int) -> int:
    """Return the last step of a group that counts for the run, 0 if there is none."""
    try:
        lines = (run_dir / "logs" / f"group-{group}.jsonl").read_text(encoding="utf-8").split("\n")
    except OSError:
        return 0
    for line in reversed(lines):
        event = parse_event(line)
        if event.get("event") in ("committed", "synced"):
            return int(event["step"])
    return 0


def parse_event(line: str) -> dict[str, Any]:
    """Return an event of a group, empty if the line is incomplete."""
    try:
        event = parse_json(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def report_end(run_dir: Path, code: int) -> None:
    """Run the notify command at the end of the run."""
    status = read_json_or_empty(run_dir / STATUS)
    states = {0: "finished", EXIT_PREEMPTED: "preempted"}
    warning = run_notify_command(
        get_environment(),
        run_dir,
        state=states.get(code, "failed"),
        step=status.get("step", 0),
        exit_code=code,
        message=f"the replica groups ended with exit code {code}",
    )
    if warning is not None:
        log_line(warning, level="warning")


@contextmanager
def restore_signal_mask() -> Iterator[None]:
    """Within the block, block only what a new process has to unblock when it has handlers."""
    before = signal.pthread_sigmask(signal.SIG_SETMASK, list_run_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
