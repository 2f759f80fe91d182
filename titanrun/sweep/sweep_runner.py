"""Sweep execution: a few runs at a time, skipping finished and resuming interrupted ones."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from titanrun.config.problems import problem_error
from titanrun.distributed.spec.run_signals import SAVE_SIGNAL, list_run_signals
from titanrun.launch.launch_env import build_threads_environment
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.sweep.config import EarlyStoppingConfig, SweepConfig
from titanrun.sweep.early_stopping import EarlyStopDecision, judge_run
from titanrun.sweep.sweep_results import get_sweep_run_state, load_metric_curve
from titanrun.sweep.validate_points import PlannedRun

RECORD = "sweep.json"
LOGS = "logs"
POLL_SECONDS = 0.2
EXIT_PREEMPTED = 75
ACTIVE_RUN_STATES = ("starting", "running")
PrintLine = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class SweepRunner:
    """Runner that starts the runs in order and waits for them.

    Args:
        config: The settings of the sweep.
        recipe: The recipe file.
        folder: The parent folder of the runs.
        runs: All runs of the sweep.
        print_line: Prints a line for the user.
    """

    config: SweepConfig
    recipe: str
    folder: Path
    runs: Sequence[PlannedRun]
    print_line: PrintLine
    early_stop_reasons: dict[str, str] = field(default_factory=dict)
    last_passed_rungs: dict[str, int] = field(default_factory=dict)
    _processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _exit_code: int = 0
    _is_stopping: bool = False

    def run(self) -> int:
        """Train the remaining runs.

        Return 0 if every run finished or was stopped early, the exit code of the first that failed,
        or 75.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / LOGS).mkdir(exist_ok=True)
        self.load_record()
        waiting = [run for run in self.runs if not self._is_done(run)]
        with self._forward_signals():
            while (waiting and not self._is_stopping) or self._processes:
                while (
                    waiting and len(self._processes) < self.config.slots and not self._is_stopping
                ):
                    self._start(waiting.pop(0))
                self._poll()
                time.sleep(POLL_SECONDS)
        return EXIT_PREEMPTED if self._is_stopping else self._exit_code

    def load_record(self) -> None:
        """Load the decisions of earlier starts of this sweep."""
        self.early_stop_reasons = load_early_stops(self.folder)
        self.last_passed_rungs = load_last_passed_rungs(self.folder)

    def _is_done(self, run: PlannedRun) -> bool:
        """Return whether a run is finished, stopped early, or trained by another process."""
        if run.name in self.early_stop_reasons:
            self.print_line(f"{run.name}: was stopped early")
            return True
        state = get_sweep_run_state(run.folder)
        if state in ACTIVE_RUN_STATES:
            self.print_line(f"{run.name}: already training in another process, skipped")
        elif state == "finished":
            self.print_line(f"{run.name}: already finished")
        return state in (*ACTIVE_RUN_STATES, "finished")

    def _start(self, run: PlannedRun) -> None:
        command = [sys.executable, "-m", "titanrun", "train", self.recipe, *run.arguments]
        environment = build_threads_environment(self.config.slots)
        with self._get_log_path(run.name).open("ab") as log:
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
        for name, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[name]
                self._record_end(name, code)
        if self.config.early_stopping is not None and not self._is_stopping:
            self._stop_runs_that_fall_behind(self.config.early_stopping)

    def _stop_runs_that_fall_behind(self, config: EarlyStoppingConfig) -> None:
        """Judge the active runs, and record decisions before acting on them."""
        curves = {run.name: load_metric_curve(run.folder, self.config) for run in self.runs}
        for name, process in self._processes.items():
            if name in self.early_stop_reasons:
                continue
            last_passed = self.last_passed_rungs.get(name, 0)
            decision = judge_run(config, name, curves, last_passed_rung=last_passed)
            if decision == EarlyStopDecision(None, last_passed):
                continue
            self.last_passed_rungs[name] = decision.last_passed_rung
            if decision.stop_reason is not None:
                self.early_stop_reasons[name] = decision.stop_reason
            write_early_stops(self.folder, self.early_stop_reasons, self.last_passed_rungs)
            if decision.stop_reason is not None:
                process.send_signal(signal.SIGTERM)

    def _record_end(self, name: str, code: int) -> None:
        if name in self.early_stop_reasons:
            self.print_line(f"{name}: stopped early: {self.early_stop_reasons[name]}")
        elif code == 0:
            self.print_line(f"{name}: finished")
        elif code == EXIT_PREEMPTED:
            self.print_line(f"{name}: interrupted, resumes when the sweep is run again")
            self._is_stopping = True
        else:
            code = 128 - code if code < 0 else code
            self._exit_code = self._exit_code or code
            self.print_line(
                f"{name}: failed with exit code {code}: {find_last_error(self._get_log_path(name))}"
            )

    def _get_log_path(self, name: str) -> Path:
        return self.folder / LOGS / f"{name}.log"

    @contextmanager
    def _forward_signals(self) -> Iterator[None]:
        """Stop all runs on a stop signal, each with a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._is_stopping = True
            for process in self._processes.values():
                process.send_signal(signal.SIGTERM)

        before = {
            number: signal.signal(number, stop)
            for number in list_run_signals()
            if number != SAVE_SIGNAL
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def find_last_error(log: Path) -> str:
    """Return the last error in a run's log, and the path of the log."""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line for line in lines if line.startswith("error")]
    return f"{(errors or lines or ['no output'])[-1].strip()} ({log})"


def load_early_stops(folder: Path) -> dict[str, str]:
    """Load the names of the runs that were stopped early, with the reasons."""
    ended = read_json_or_empty(folder / RECORD).get("ended_early", {})
    return dict(ended) if isinstance(ended, Mapping) else {}


def load_last_passed_rungs(folder: Path) -> dict[str, int]:
    """Load the last rung that each run has passed, in steps."""
    passed = read_json_or_empty(folder / RECORD).get("passed_rungs", {})
    if not isinstance(passed, Mapping):
        return {}
    return {name: rung for name, rung in passed.items() if isinstance(rung, int)}


def write_early_stops(
    folder: Path, reasons: Mapping[str, str], last_passed_rungs: Mapping[str, int]
) -> None:
    """Write why runs were stopped early, and the rungs that runs have passed, atomically."""
    part = folder / f"{RECORD}.tmp"
    record = {"ended_early": dict(reasons), "passed_rungs": dict(last_passed_rungs)}
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / RECORD)


@contextmanager
def lock_sweep_folder(folder: Path) -> Iterator[None]:
    """Lock the sweep's folder. Raise ProblemsFound if another process holds the lock."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise problem_error(
                "conflict",
                f"another sweep is running in '{folder}'",
                hint="wait for it, or use another folder",
            ) from None
        yield
