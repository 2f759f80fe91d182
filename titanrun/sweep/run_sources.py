"""Where the runs of a sweep come from, and where it records decisions about them."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from titanrun.config.exit_codes import EXIT_USAGE
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.rundir.run_files import read_json_or_empty
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.early_stopping import EarlyStopDecision, judge_run
from titanrun.sweep.recipe_edits import EDITED
from titanrun.sweep.sweep_results import (
    ARCHIVED,
    DONE_STATES,
    FINISHED,
    get_sweep_run_state,
    load_metric_curve,
    wait_for_result,
)
from titanrun.sweep.validate_points import PlannedRun

RECORD = "sweep.json"
ACTIVE_RUN_STATES = ("starting", "running")
PrintLine = Callable[[str], None]


class RunSource(Protocol):
    """Source of the runs of a sweep."""

    @property
    def exit_code(self) -> int:
        """Exit code of the source itself, 0 unless it gave up."""

    @property
    def problems(self) -> Sequence[Problem]:
        """What kept the source from recording the end of a run."""

    @property
    def has_more(self) -> bool:
        """Whether there may be more runs to start, now or later."""

    @property
    def num_followed(self) -> int:
        """Number of runs on this machine that another process started, and this one follows."""

    def take_run(self) -> PlannedRun | None:
        """Return the next run to start, or None if there is none at the moment."""

    def refresh(self) -> None:
        """Look after what changes without this process; called a few times a second."""

    def list_folders(self) -> Mapping[str, Path]:
        """Return the folders of all runs so far by name, for comparison."""

    def get_stop_reason(self, name: str) -> str | None:
        """Return why a run was stopped early, or None."""

    def get_last_passed_rung(self, name: str) -> int:
        """Return the last rung of `halving` that a run has passed, 0 for none."""

    def judge_runs(
        self, config: SweepConfig, names: Collection[str]
    ) -> Mapping[str, EarlyStopDecision]:
        """Return the new decisions on these active runs, by the sweep's early stopping."""

    def record_decision(self, name: str, decision: EarlyStopDecision) -> None:
        """Record a decision before anybody acts on it."""

    def record_end(self, name: str, code: int) -> None:
        """Record the exit code of a run that this process started."""


@dataclass(slots=True, kw_only=True)
class FixedRuns:
    """Runs that are known from the start; decisions are recorded in `sweep.json`.

    Args:
        folder: The parent folder of the runs.
        runs: All runs of the sweep.
        print_line: Prints a line for the user.
        is_edited: Returns whether a run that starts now would train another recipe than planned.
    """

    folder: Path
    runs: Sequence[PlannedRun]
    print_line: PrintLine
    is_edited: Callable[[PlannedRun], bool]
    exit_code: int = 0
    num_followed: int = 0
    problems: list[Problem] = field(default_factory=list)
    early_stop_reasons: dict[str, str] = field(init=False)
    last_passed_rungs: dict[str, int] = field(init=False)
    _waiting: list[PlannedRun] = field(init=False)

    def __post_init__(self) -> None:
        self.early_stop_reasons = load_early_stops(self.folder)
        self.last_passed_rungs = load_last_passed_rungs(self.folder)
        self._waiting = [run for run in self.runs if not self._is_done(run)]

    @property
    def has_more(self) -> bool:
        """Whether runs are waiting."""
        return bool(self._waiting)

    def take_run(self) -> PlannedRun | None:
        """Return the next run to start."""
        if not self._waiting:
            return None
        run = self._waiting.pop(0)
        if not self.is_edited(run):
            return run
        self.print_line(EDITED.format("sweep", "runs"))
        self.exit_code = EXIT_USAGE
        self._waiting.clear()
        return None

    def refresh(self) -> None:
        """Do nothing: no other process adds or ends runs."""

    def list_folders(self) -> Mapping[str, Path]:
        """Return the folders of all runs by name."""
        return {run.name: run.folder for run in self.runs}

    def get_stop_reason(self, name: str) -> str | None:
        """Return why a run was stopped early, or None."""
        return self.early_stop_reasons.get(name)

    def get_last_passed_rung(self, name: str) -> int:
        """Return the last rung that a run has passed, 0 for none."""
        return self.last_passed_rungs.get(name, 0)

    def judge_runs(
        self, config: SweepConfig, names: Collection[str]
    ) -> Mapping[str, EarlyStopDecision]:
        """Return the new decisions on these active runs."""
        return judge_by_curves(self, config, names)

    def record_decision(self, name: str, decision: EarlyStopDecision) -> None:
        """Write a decision to `sweep.json`."""
        self.last_passed_rungs[name] = decision.last_passed_rung
        if decision.stop_reason is not None:
            self.early_stop_reasons[name] = decision.stop_reason
        write_early_stops(self.folder, self.early_stop_reasons, self.last_passed_rungs)

    def record_end(self, name: str, code: int) -> None:
        """Wait until the run directory, which another machine may have written, tells the end."""
        try:
            if code == 0:
                wait_for_result(self.folder / name, is_over=True, print_line=self.print_line)
        except ProblemsFound as found:
            self.problems += found.problems
            self.exit_code = found.exit_code
            self._waiting.clear()

    def _is_done(self, run: PlannedRun) -> bool:
        """Return whether a run is over, archived, or trained by another process."""
        if run.name in self.early_stop_reasons:
            self.print_line(f"{run.name}: was stopped early")
            return True
        state = get_sweep_run_state(run.folder)
        if state in ACTIVE_RUN_STATES:
            self.print_line(f"{run.name}: already training in another process, skipped")
        elif state == FINISHED:
            self.print_line(f"{run.name}: already finished")
        elif state == ARCHIVED:
            self.print_line(f"{run.name}: archived, skipped")
        return state in (*ACTIVE_RUN_STATES, *DONE_STATES)


def judge_by_curves(
    source: RunSource, config: SweepConfig, names: Collection[str]
) -> dict[str, EarlyStopDecision]:
    """Return the new decisions on these runs by `median` or `halving`, from all curves so far."""
    assert config.early_stopping is not None
    curves = {
        name: load_metric_curve(folder, config) for name, folder in source.list_folders().items()
    }
    found = {}
    for name in names:
        last_passed = source.get_last_passed_rung(name)
        decision = judge_run(config.early_stopping, name, curves, last_passed_rung=last_passed)
        if decision != EarlyStopDecision(None, last_passed):
            found[name] = decision
    return found


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
    update_record(folder, ended_early=dict(reasons), passed_rungs=dict(last_passed_rungs))


def load_overrides(folder: Path) -> list[str]:
    """Load the overrides with which the sweep was last started."""
    overrides = read_json_or_empty(folder / RECORD).get("overrides", [])
    return [str(text) for text in overrides] if isinstance(overrides, list) else []


def write_overrides(folder: Path, overrides: Sequence[str]) -> None:
    """Write the overrides of the command line, with which the runs are found again."""
    if list(overrides) != load_overrides(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        update_record(folder, overrides=list(overrides))


def update_record(folder: Path, **entries: object) -> None:
    """Replace entries of the sweep's record, atomically."""
    part = folder / f"{RECORD}.tmp"
    record = {**read_json_or_empty(folder / RECORD), **entries}
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / RECORD)
