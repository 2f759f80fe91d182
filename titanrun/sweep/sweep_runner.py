"""Sweep execution: a few runs at a time, skipping finished and resuming interrupted ones."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from titanrun.config.exit_codes import EXIT_PREEMPTED, STOPPED_EARLY_CODES
from titanrun.config.problems import ProblemsFound
from titanrun.distributed.spec.run_signals import handle_signals, list_stop_signals
from titanrun.launch.launch_env import build_threads_environment
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.run_logs import LOGS, get_log_path, lock_log
from titanrun.sweep.run_sources import PrintLine, RunSource
from titanrun.sweep.sweep_results import get_sweep_run_state
from titanrun.sweep.validate_points import PlannedRun

POLL_SECONDS = 0.2
TRAIN_COMMAND = (sys.executable, "-m", "titanrun", "train")


class RunStarter(Protocol):
    """How the runs of a sweep are started."""

    def build_command(self, run: PlannedRun) -> Sequence[str]:
        """Return the command that trains a run, or resumes it."""

    def build_environment(self) -> Mapping[str, str]:
        """Return the environment of the command."""

    def get_stop_signal(self, number: int) -> int:
        """Return what tells the command that this signal came for its run."""


@dataclass(frozen=True, slots=True)
class LocalStarter:
    """Starter of runs that share this machine.

    Args:
        recipe: The recipe file.
        slots: Number of runs that train at the same time.
        command: Words before the recipe of the command that trains a run.
    """

    recipe: str
    slots: int
    command: tuple[str, ...] = TRAIN_COMMAND

    def build_command(self, run: PlannedRun) -> Sequence[str]:
        """Return the command that trains a run, or resumes it."""
        return [*self.command, self.recipe, *run.arguments]

    def build_environment(self) -> Mapping[str, str]:
        """Return the environment, with this run's share of the cores."""
        return build_threads_environment(self.slots)

    def get_stop_signal(self, number: int) -> int:
        """Return the signal itself, which the run's state names."""
        return number


@dataclass(slots=True, kw_only=True)
class SweepRunner:
    """Runner that starts the runs in order and waits for them.

    Args:
        config: The settings of the sweep.
        folder: The parent folder of the runs.
        source: Where the runs come from.
        starter: How the runs are started.
        print_line: Prints a line for the user.
    """

    config: SweepConfig
    folder: Path
    source: RunSource
    starter: RunStarter
    print_line: PrintLine
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _exit_code: int = 0
    _is_stopping: bool = False

    def run(self) -> int:
        """Train the remaining runs.

        Return 0 if every run finished or was stopped early, the exit code of the first that failed,
        or 75. Raise ProblemsFound if the end of a run could not be read.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / LOGS).mkdir(exist_ok=True)
        with self._forward_signals():
            while self._is_waiting() or self._processes:
                self._start_runs()
                self._poll()
                time.sleep(POLL_SECONDS)
        if self.source.problems:
            raise ProblemsFound(self.source.problems)
        code = self._exit_code or self.source.exit_code
        return EXIT_PREEMPTED if self._is_stopping else code

    def _is_waiting(self) -> bool:
        """Return whether runs may still start, or others are followed."""
        return not self._is_stopping and (self.source.has_more or self.source.num_followed > 0)

    def _start_runs(self) -> None:
        """Start runs as long as slots are free."""
        while (
            not self._is_stopping
            and len(self._processes) + self.source.num_followed < self.config.slots
        ):
            run = self.source.take_run()
            if run is None:
                return
            self._start(run)

    def _start(self, run: PlannedRun) -> None:
        command = self.starter.build_command(run)
        environment = self.starter.build_environment()
        with get_log_path(self.folder, run.name).open("ab") as log:
            if not lock_log(log) and get_sweep_run_state(run.folder) == "waiting":
                # its sweep was killed, while the run itself went on starting
                self.print_line(f"{run.name}: already training in another process, skipped")
                return
            # separate process group: Ctrl-C reaches only this process, which forwards it once
            self._processes[run.name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.print_line(f"{run.name}: started")

    def _poll(self) -> None:
        """Record runs that have ended, and stop those that fall behind."""
        self.source.refresh()
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[name]
                self._record_end(name, code)
        if self.config.early_stopping is not None and not self._is_stopping:
            self._stop_runs_that_fall_behind()

    def _stop_runs_that_fall_behind(self) -> None:
        """Judge the active runs, and record decisions before acting on them."""
        names = [name for name in self._processes if self.source.get_stop_reason(name) is None]
        for name, decision in self.source.judge_runs(self.config, names).items():
            self.source.record_decision(name, decision)
            if decision.stop_reason is not None:
                self._send_stop_signal(name, signal.SIGTERM)

    def _send_stop_signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(self.starter.get_stop_signal(number))

    def _record_end(self, name: str, code: int) -> None:
        reason = self.source.get_stop_reason(name)
        self.source.record_end(name, code)
        if reason is not None:
            self.print_line(f"{name}: stopped early: {reason}")
        elif code == 0:
            self.print_line(f"{name}: finished")
        elif code == EXIT_PREEMPTED or (self._is_stopping and code in STOPPED_EARLY_CODES):
            self.print_line(f"{name}: interrupted, resumes when the sweep is run again")
            self._is_stopping = True
        else:
            code = 128 - code if code < 0 else code
            self._exit_code = self._exit_code or code
            self.print_line(
                f"{name}: failed with exit code {code}: "
                f"{find_last_error(get_log_path(self.folder, name))}"
            )

    @contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """Stop all runs on a stop signal, each with a checkpoint.

        They get the same signal, which their states name. A second Ctrl-C would end them without a
        checkpoint: they get SIGTERM.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            number = signal.SIGTERM if self._is_stopping else number
            self._is_stopping = True
            for name in self._processes:
                self._send_stop_signal(name, number)

        with handle_signals(list_stop_signals(), stop):
            yield


def find_last_error(log: Path) -> str:
    """Return the last error in a run's log, and the path of the log."""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line for line in lines if line.startswith("error")]
    return f"{(errors or lines or ['no output'])[-1].strip()} ({log})"
