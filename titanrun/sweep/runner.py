"""Trains the runs of a sweep, a few at a time: what is finished is left alone, what was cut off goes on."""

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

from titanrun.config.problems import fail
from titanrun.launch.environment import threads_environment
from titanrun.recipe.run_files import read_json
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.examined import Planned
from titanrun.sweep.results import read_curve, state_of
from titanrun.sweep.stopping import falls_behind

RECORD = "sweep.json"
LOGS = "logs"
LOOK_SECONDS = 0.2
EXIT_PREEMPTED = 75
ALIVE = ("starting", "running")
Tell = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Runner:
    """Starts the runs in order and waits for them.

    Args:
        config: the sweep's settings.
        recipe: the recipe's file.
        folder: where the runs lie.
        runs: all of the sweep's.
        tell: says a line to the person.
    """

    config: SweepConfig
    recipe: str
    folder: Path
    runs: Sequence[Planned]
    tell: Tell
    ended_early: dict[str, str] = field(default_factory=dict)
    _training: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _exit_code: int = 0
    _stops: bool = False

    def run(self) -> int:
        """Trains what is left. Returns 0 where every run finished or was ended early, the exit code of the first that failed, or 75."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / LOGS).mkdir(exist_ok=True)
        self.ended_early = read_ended(self.folder)
        waiting = [run for run in self.runs if not self._is_done(run)]
        with self._signals():
            while (waiting and not self._stops) or self._training:
                while waiting and len(self._training) < self.config.slots and not self._stops:
                    self._start(waiting.pop(0))
                self._look()
                time.sleep(LOOK_SECONDS)
        return EXIT_PREEMPTED if self._stops else self._exit_code

    def _is_done(self, run: Planned) -> bool:
        """Whether nothing is left to do for a run, or somebody else is doing it."""
        if run.name in self.ended_early:
            self.tell(f"{run.name}: was ended early")
            return True
        state = state_of(run.folder)
        if state in ALIVE:
            self.tell(f"{run.name}: is training already, and is left to whoever started it")
        elif state == "finished":
            self.tell(f"{run.name}: is finished")
        return state in (*ALIVE, "finished")

    def _start(self, run: Planned) -> None:
        command = [sys.executable, "-m", "titanrun", "train", self.recipe, *run.arguments]
        environment = threads_environment(self.config.slots)
        with self._log(run.name).open("ab") as log:
            # a group of its own: Ctrl-C reaches this process alone, which passes it on once
            self._training[run.name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.tell(f"{run.name}: started")

    def _look(self) -> None:
        """Takes note of runs that have ended, and ends those that fall behind."""
        for name, process in list(self._training.items()):
            code = process.poll()
            if code is not None:
                del self._training[name]
                self._note_end(name, code)
        if self.config.early_stopping is None or self._stops:
            return
        curves = {run.name: read_curve(run.folder, self.config) for run in self.runs}
        for name, process in self._training.items():
            reason = (
                falls_behind(self.config.early_stopping, name, curves)
                if name not in self.ended_early
                else None
            )
            if reason is not None:
                self.ended_early[name] = reason
                write_ended(self.folder, self.ended_early)
                process.send_signal(signal.SIGTERM)

    def _note_end(self, name: str, code: int) -> None:
        if name in self.ended_early:
            self.tell(f"{name}: ended early: {self.ended_early[name]}")
        elif code == 0:
            self.tell(f"{name}: finished")
        elif code == EXIT_PREEMPTED:
            self.tell(f"{name}: stopped, goes on when the sweep does")
            self._stops = True
        else:
            code = 128 - code if code < 0 else code
            self._exit_code = self._exit_code or code
            self.tell(f"{name}: failed with exit code {code}: {last_words(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self.folder / LOGS / f"{name}.log"

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop all runs, each with a checkpoint."""

        def stop(number: int, frame: FrameType | None) -> None:
            self._stops = True
            for process in self._training.values():
                process.send_signal(signal.SIGTERM)

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def last_words(log: Path) -> str:
    """The last error that a run told, and where the rest stands."""
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line for line in lines if line.startswith("error")]
    return f"{(errors or lines or ['it said nothing'])[-1].strip()} ({log})"


def read_ended(folder: Path) -> dict[str, str]:
    """Runs that were ended early, with the reasons."""
    ended = read_json(folder / RECORD).get("ended_early", {})
    return dict(ended) if isinstance(ended, Mapping) else {}


def write_ended(folder: Path, ended: Mapping[str, str]) -> None:
    """Keeps which runs were ended early, in one move."""
    part = folder / f"{RECORD}.tmp"
    part.write_text(json.dumps({"ended_early": dict(ended)}, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / RECORD)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the sweep's folder. Raises ProblemsFound where another process does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise fail(
                "conflict",
                f"another sweep runs in '{folder}'",
                help="wait for it, or name another folder",
            ) from None
        yield
