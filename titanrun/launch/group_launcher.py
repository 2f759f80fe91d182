"""Replica groups of a run on this machine: a restart of each that fails.

All groups of the run, with their lighthouse, or the one of this machine.
"""

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.parse import urlsplit

from titanrun.components.metrics.spec.console_stream import drain_console
from titanrun.config.exit_codes import EXIT_INTERNAL, EXIT_PREEMPTED
from titanrun.config.json_text import parse_json
from titanrun.distributed.fault_tolerance_config import FaultToleranceConfig
from titanrun.distributed.spec.run_signals import SAVE_SIGNAL, format_stop_notice, list_run_signals
from titanrun.launch.config import LocalLaunchConfig
from titanrun.launch.host_address import LOOPBACK, HostAddress, find_own_address
from titanrun.launch.launch_env import GroupPlace, get_environment
from titanrun.launch.launcher_log import log_line
from titanrun.launch.lighthouse_process import AnyLighthouse, Lighthouse, SharedLighthouse
from titanrun.launch.local_launcher import is_restartable, log_note
from titanrun.launch.worker_processes import (
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
    restore_signal_mask,
    spawn_worker,
)
from titanrun.recipe.rundir.run_files import STATUS, read_json_or_empty, write_indented_json
from titanrun.recipe.rundir.run_lock import (
    hold_opening,
    is_in_use,
    lock_groups,
)
from titanrun.recipe.rundir.run_notification import run_notify_command
from titanrun.runs.group_events import record_changes

POLL_SECONDS = 0.5


def start_replica_groups(
    launch: LocalLaunchConfig,
    config: FaultToleranceConfig,
    *,
    resolved: Path,
    processes: int,
    joined: IO[str] | None = None,
    command: Sequence[str] = (sys.executable, "-m", WORKER),
) -> int:
    """Train the run in `resolved` with groups of `processes` workers, and return the exit code.

    `joined` is the lock of a run that was joined already, `command` starts a worker.

    Raises:
        ProblemsFound: another process writes into the run directory, or the lighthouse is unknown.
    """
    drain_console()
    run_dir, own = resolved.parent, find_group_address(config)
    (run_dir / "logs").mkdir(exist_ok=True)
    signal.signal(signal.SIGCHLD, do_nothing)
    lock = lock_groups(run_dir, config.replica_id, joined)
    with lock, TemporaryDirectory(prefix="titanrun-") as folder:
        lighthouse = build_lighthouse(config, run_dir)
        build = partial(
            ReplicaGroup,
            max_restarts=launch.max_restarts,
            resolved=resolved,
            num_workers=processes,
            reports=Path(folder),
            command=command,
            own=own,
        )
        numbers = range(config.group_size) if config.replica_id is None else [config.replica_id]
        count = len(numbers)
        groups = [build(number, index=i, num_groups=count) for i, number in enumerate(numbers)]
        try:
            code = build_monitor(groups, lighthouse, config, launch.max_restarts, run_dir).run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for group in groups:
                group.kill()
            lighthouse.kill()
        if config.replica_id is None:
            report_end(run_dir, code)
    if config.replica_id is not None:
        with hold_opening(run_dir):
            # the last of the machines reports the end of the run
            if not is_in_use(run_dir):
                report_end(run_dir, code)
    return code


def build_lighthouse(config: FaultToleranceConfig, run_dir: Path) -> AnyLighthouse:
    """Build the lighthouse of a run, not started, or what stands for that of several machines."""
    if config.lighthouse is None:
        return Lighthouse(config, run_dir / "logs" / "lighthouse.log")
    return SharedLighthouse(config.lighthouse)


def find_group_address(config: FaultToleranceConfig) -> HostAddress:
    """Return where groups of this machine listen for the others: where they see the lighthouse."""
    if config.lighthouse is None:
        return LOOPBACK
    address = urlsplit(config.lighthouse)
    assert address.hostname is not None and address.port is not None
    return find_own_address(address.hostname, address.port)


@dataclass(slots=True)
class ReplicaGroup:
    """Workers of one group, and how often they were started again without a new step.

    Args:
        number: number of the group.
        max_restarts: restarts without a new step after which it is given up.
        resolved: path of resolved.yaml.
        num_workers: ranks of the group.
        index: its number among the groups of this launcher.
        num_groups: groups of this launcher.
        reports: folder of the failure reports of its ranks.
        command: starts a worker, with the path of resolved.yaml behind it.
        own: where the group listens for the others.
    """

    number: int
    max_restarts: int
    resolved: Path
    num_workers: int
    index: int
    num_groups: int
    reports: Path
    command: Sequence[str]
    own: HostAddress = LOOPBACK
    workers: list[WorkerProcess] = field(default_factory=list)
    exit_code: int | None = None
    _num_restarts: int = 0
    _last_step: int = 0

    def start(self, lighthouse: str) -> None:
        """Start its workers."""
        self.workers, self.exit_code = [], None
        place = GroupPlace(self.number, self.index, self.num_groups, lighthouse, self.own)
        command = [*self.command, str(self.resolved)]
        with restore_signal_mask(), listen_for_rendezvous(self.own.address) as meeting:
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
        save_seconds: how long a group of another machine may take for the last save. None: there
            is no other machine.
        num_returns: how often a group that has finished comes back where that save is missing.
    """

    groups: Sequence[ReplicaGroup]
    lighthouse: AnyLighthouse
    min_groups: int
    run_dir: Path
    save_seconds: float | None = None
    num_returns: int = 0
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
            # while a process is started, the end of another one is not signaled
            while self._poll():
                pass
            if not self._running_groups:
                if self._return_for_last_save():
                    continue
                return self._get_exit_code()
            self._handle_signal(signal.Signals(signal.sigwait(list_monitored_signals())))

    @property
    def _running_groups(self) -> list[ReplicaGroup]:
        return [group for group in self.groups if group.exit_code is None]

    def _poll(self) -> bool:
        """Replace what has ended, and limit the time of groups that have lost a rank.

        Return whether something was started.
        """
        has_started = self.lighthouse.has_ended
        if has_started:
            log_note("the lighthouse of the replica groups ended: starting it again")
            self.lighthouse.start()
        before = self._running_groups
        is_incomplete = [group.poll() for group in self.groups]
        if any(is_incomplete) and not self._has_time_limit:
            self._has_time_limit = True
            signal.setitimer(signal.ITIMER_REAL, GRACE_SECONDS)
        for group in before:
            if group.exit_code not in (None, 0, EXIT_PREEMPTED) and not self._is_stopping:
                has_started = self._replace(group) or has_started
        return has_started

    def _replace(self, group: ReplicaGroup) -> bool:
        """Start a failed group again and return True, or give up where too few are left."""
        if group.take_restart():
            group.start(self.lighthouse.address)
            # those that finished before the last checkpoint was saved are needed for a step again
            for other in self.groups if not has_run_finished(self.run_dir) else ():
                if other.exit_code == 0:
                    other.start(self.lighthouse.address)
            return True
        log_note(f"replica group {group.number} is lost")
        self._first_lost_code = self._first_lost_code or group.exit_code
        ended = [other for other in self.groups if other.exit_code not in (None, 0)]
        if len(self.groups) - len(ended) < self.min_groups:
            self._is_stopping = True
            for other in self._running_groups:
                other.send_signal(signal.SIGKILL)
        return False

    def _return_for_last_save(self) -> bool:
        """Start groups that finished again if another machine's has not saved the last step.

        Return whether they run again.
        """
        finished = [group for group in self.groups if group.exit_code == 0]
        if self.save_seconds is None or not finished:
            return False
        end = time.monotonic() + self.save_seconds
        while not has_run_finished(self.run_dir):
            if self._is_stopping or time.monotonic() >= end:
                break
            number = signal.sigtimedwait(list_monitored_signals(), POLL_SECONDS)
            if number is not None:
                self._handle_signal(signal.Signals(number.si_signo))
        if has_run_finished(self.run_dir) or self._is_stopping or not self.num_returns:
            return False
        self.num_returns -= 1
        for group in finished:
            log_note(f"the last step is not saved: starting replica group {group.number} again")
            group.start(self.lighthouse.address)
        return True

    def _handle_signal(self, number: signal.Signals) -> None:
        if number == signal.SIGALRM:
            self._has_time_limit = False
            for group in self.groups:
                if any(worker.has_failed for worker in group.workers):
                    group.send_signal(signal.SIGKILL)
            return
        if number not in list_run_signals():
            return
        if number != SAVE_SIGNAL and not self._is_stopping:
            self._is_stopping = True
            log_note(format_stop_notice(number))
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
        return self._first_lost_code or next((code for code in codes if code), EXIT_INTERNAL)


def build_monitor(
    groups: Sequence[ReplicaGroup],
    lighthouse: AnyLighthouse,
    config: FaultToleranceConfig,
    max_restarts: int,
    run_dir: Path,
) -> GroupMonitor:
    """Build the monitor of all groups of a run, or of the one of this machine."""
    if config.replica_id is None:
        return GroupMonitor(groups, lighthouse, config.min_replica_size, run_dir)
    seconds = config.join_timeout_ms / 1000
    return GroupMonitor(groups, lighthouse, 1, run_dir, seconds, max_restarts)


def has_run_finished(run_dir: Path) -> bool:
    """Return whether the last checkpoint of the run is saved."""
    return read_json_or_empty(run_dir / STATUS).get("state") == "finished"


def read_last_commit(run_dir: Path, group: int) -> int:
    """Return the last step of a group that counts for the run, 0 if there is none."""
    try:
        data = (run_dir / "logs" / f"group-{group}.jsonl").read_bytes()
    except OSError:
        return 0
    for line in reversed(data.decode("utf-8", "replace").split("\n")):
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
    """Record the end of the run in its files, and run the notify command."""
    record_changes(run_dir)
    if code not in (0, EXIT_PREEMPTED):
        record_failure_status(run_dir, code)
    status = read_json_or_empty(run_dir / STATUS)
    if code == EXIT_PREEMPTED and status.get("state") == "starting":
        # no group had come to write it
        status = {**status, "state": "preempted", "exit_code": code}
        write_indented_json(run_dir / STATUS, status)
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
