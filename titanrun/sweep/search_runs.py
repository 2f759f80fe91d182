"""Runs of a search, drawn while it goes on; several processes share one search."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from titanrun.config.exit_codes import (
    EXIT_HANG,
    EXIT_KILLED,
    EXIT_NO_QUORUM,
    EXIT_NOT_STARTED,
    EXIT_PREEMPTED,
    EXIT_USAGE,
    STOPPED_EARLY_CODES,
)
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.sweep.config import SweepConfig
from titanrun.sweep.curve_reports import CurveReporter, load_curve
from titanrun.sweep.early_stopping import EarlyStopDecision
from titanrun.sweep.folder_lock import (
    SearchProcess,
    is_search_process_alive,
    wait_for_search_lock,
)
from titanrun.sweep.recipe_edits import EDITED, compute_recipe_digest
from titanrun.sweep.run_logs import is_run_alive
from titanrun.sweep.run_sources import PrintLine, judge_by_curves
from titanrun.sweep.search_points import PointPlanner
from titanrun.sweep.search_study import ENDED, REJECTED, SearchStudy, TrialRecord
from titanrun.sweep.sweep_results import ARCHIVED, SweepRunResult, wait_for_result
from titanrun.sweep.trial_runs import add_trial_tag, find_same_point, load_trial_result
from titanrun.sweep.validate_points import PlannedRun

MAX_REJECTED = 100
# what says nothing about the values: a stop signal, a hang, a lost lighthouse, a kill, and that it
# could not start
INTERRUPTED_CODES = (EXIT_PREEMPTED, *STOPPED_EARLY_CODES)
LEFT_OPEN_CODES = (*INTERRUPTED_CODES, EXIT_HANG, EXIT_NO_QUORUM, EXIT_KILLED, EXIT_NOT_STARTED)
# note on a trial whose run was asked to stop
INTERRUPTED = "interrupted"
# how often the study is read for what other processes have recorded
READ_SECONDS = 1.0
# a run that is killed again and again, by its memory for example, must not take up every task
MAX_KILLS = 3


@dataclass(slots=True, kw_only=True)
class SearchRuns:
    """Source of runs that a study draws. What becomes of each is recorded in the study.

    Args:
        planner: Plans the run of a drawn point.
        study: The study.
        process: This process, as the others see it.
        print_line: Prints a line for the user.
        is_single: Whether this process starts one run only.
    """

    planner: PointPlanner
    study: SearchStudy
    process: SearchProcess
    print_line: PrintLine
    is_single: bool = False
    exit_code: int = 0
    problems: list[Problem] = field(default_factory=list)
    _reporter: CurveReporter | None = field(init=False)
    """Reporter to the pruner, None without one."""
    _trials: dict[str, int] = field(default_factory=dict)
    """Trials of the runs that this process started, by name of the run."""
    _followed: dict[int, str] = field(default_factory=dict)
    """Runs that a dead process started and that still train, by trial."""
    _copies: dict[int, int] = field(default_factory=dict)
    """Trials that wait for another trial with the same values."""
    _known: set[int] = field(default_factory=set)
    """Trials that this process has drawn or taken over, also those that it has left open."""
    _is_exhausted: bool = False
    _is_recipe_edited: bool = False
    _next_read: float = 0.0
    _next_refresh: float = 0.0

    def __post_init__(self) -> None:
        config = self.planner.sweep.config
        uses_pruner = config.early_stopping is not None and config.early_stopping.is_pruner
        self._reporter = CurveReporter(self.study, config) if uses_pruner else None

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return self.planner.sweep.folder

    @property
    def has_more(self) -> bool:
        """Whether trials may be left, or wait for others."""
        return not self._is_exhausted or (bool(self._copies) and not self.is_single)

    @property
    def num_followed(self) -> int:
        """Number of runs that another process started."""
        return len(self._followed)

    def take_run(self) -> PlannedRun | None:
        """Return the run of a trial that a dead process left, or of a new one."""
        if self._is_exhausted and (self.is_single or time.monotonic() < self._next_read):
            return None
        if self._is_recipe_edited or self._find_edit():
            return None
        run = self._take_next_run()
        if self.is_single:
            self._is_exhausted = True
        return run

    def _find_edit(self) -> bool:
        """Return whether the recipe was edited, whose next runs could not be compared."""
        try:
            digest = compute_recipe_digest(self.planner.sweep.recipe)
            is_edited = digest != self.study.recipe_digest
        except ProblemsFound:
            is_edited = True
        if is_edited:
            self.print_line(EDITED.format("search", "trials"))
            self.exit_code = EXIT_USAGE
            self._is_recipe_edited = self._is_exhausted = True
        return is_edited

    def _take_next_run(self) -> PlannedRun | None:
        while True:
            with wait_for_search_lock(self.folder):
                self.study.drop_unfinished_draws()
                trials = self.study.load_trials()
                orphan = self._find_orphan(trials)
                if orphan is not None:
                    run = self._adopt(orphan)
                elif (
                    sum(trial.has_run for trial in trials) < self.planner.count
                    and not self.exit_code
                ):
                    run = self._draw(trials)
                else:
                    self._is_exhausted = True
                    self._next_read = time.monotonic() + READ_SECONDS
                    return None
            if run is not None or self._followed:
                return run

    def _find_orphan(self, trials: Sequence[TrialRecord]) -> TrialRecord | None:
        """Return the first trial whose process is dead, or was this one before it was requeued."""
        return next(
            (
                trial
                for trial in trials
                if trial.state == "running"
                and trial.number not in self._known
                and (
                    trial.notes["process"] == self.process.name
                    or not is_search_process_alive(self.folder, trial.notes["process"])
                )
            ),
            None,
        )

    def _adopt(self, trial: TrialRecord) -> PlannedRun | None:
        """Take over a trial. Return its run if it must be started, None if it is alive or over."""
        name = trial.notes["run"]
        self.study.note(trial.number, process=self.process.name)
        self._known.add(trial.number)
        if "same_as" in trial.notes:
            self._copies[trial.number] = trial.notes["same_as"]
            self._end_copies()
            return None
        if is_run_alive(self.folder, name):
            self.print_line(f"{name}: still training, although its sweep has ended")
            self._followed[trial.number] = name
            return None
        if (
            self._end_if_over(trial, name)
            or self.problems
            or self._end_if_killed_often(trial, name)
        ):
            self._end_copies()
            return None
        point = self.planner.space.restore_point(trial.notes["point"])
        case = self.planner.try_point(point)
        rejection = self.planner.find_rejection(case)
        if rejection is not None:
            self._reject(trial, rejection)
            self._end_copies()
            return None
        run = self.planner.build_run(case, {})
        self._trials[name] = trial.number
        return PlannedRun(name, self.folder / name, run.values, run.overrides, run.resolved)

    def _end_if_killed_often(self, trial: TrialRecord, name: str) -> bool:
        """Count the kills of a run between two steps, and end its trial if there are too many."""
        result = load_trial_result(self.planner, trial)
        if result.state == "preempted" or trial.notes.get(INTERRUPTED):
            self.study.note(trial.number, **{INTERRUPTED: False})
            return False
        kills = 1
        if trial.notes.get("killed_step") == result.step:
            kills += int(trial.notes["kills"])
        self.study.note(trial.number, killed_step=result.step, kills=kills)
        if kills <= MAX_KILLS:
            return False
        reason = f"killed, or not started, {kills} times after step {result.step}"
        self.study.end_failed(trial.number, reason=reason)
        self.print_line(f"{name}: has failed: {reason}")
        return True

    def _draw(self, trials: Sequence[TrialRecord]) -> PlannedRun | None:
        """Draw points until one is valid. Return None if its values have a run already."""
        runs = {trial.notes["run"]: trial.notes["point"] for trial in trials if trial.has_run}
        for _ in range(MAX_REJECTED):
            trial = self.study.ask()
            self._known.add(trial.number)
            case = self.planner.try_point(self.planner.space.build_point(trial.drawn))
            rejection = self.planner.find_rejection(case)
            if rejection is None:
                break
            self._reject(trial, rejection)
        else:
            self.print_line(f"{MAX_REJECTED} consecutive samples cannot be run: stopping")
            self.exit_code = EXIT_USAGE
            return None
        run = self.planner.build_run(case, runs)
        notes = {"point": dict(run.values), "process": self.process.name}
        same = find_same_point(trials, run.values)
        if same is None:
            # the run comes last: a trial without it is one whose process died here
            self.study.note(trial.number, **notes, run=run.name)
            self._trials[run.name] = trial.number
            return run
        self.study.note(trial.number, **notes, same_as=same.number, run=run.name)
        self.print_line(f"{run.name}: trial {trial.number} has the values of trial {same.number}")
        self._copies[trial.number] = same.number
        self._end_copies()
        return None

    def _reject(self, trial: TrialRecord, reason: str) -> None:
        self.print_line(f"trial {trial.number} is sampled again: {reason}")
        self.study.end_failed(trial.number, **{REJECTED: reason})

    def refresh(self) -> None:
        """Send a heartbeat, and end the trials of other processes' runs."""
        self.process.beat()
        if not (self._followed or self._copies) or time.monotonic() < self._next_refresh:
            return
        self._next_refresh = time.monotonic() + READ_SECONDS
        with wait_for_search_lock(self.folder):
            trials = {trial.number: trial for trial in self.study.load_trials()}
            for number, name in list(self._followed.items()):
                if not is_run_alive(self.folder, name):
                    del self._followed[number]
                    # a run that has not ended is taken over like one whose process is dead
                    if not self._end_if_over(trials[number], name):
                        self.study.note(number, process="")
                        self._known.discard(number)
                        self._is_exhausted = False
            self._end_copies()

    def _end_copies(self) -> None:
        """Give trials of all processes the values of those they equal, once these have ended."""
        trials = self.study.load_trials()
        for copy in trials:
            if copy.state != "running" or "run" not in copy.notes or "same_as" not in copy.notes:
                continue
            original = trials[copy.notes["same_as"]]
            if original.state == "complete":
                assert original.value is not None
                self.study.end_complete(copy.number, original.value)
            elif original.state in ENDED:
                self.study.end_failed(copy.number)
        own = {*self._trials.values(), *self._followed}
        for number, other in list(self._copies.items()):
            is_interrupted = (
                trials[other].notes["process"] == self.process.name and other not in own
            )
            # both go on when the sweep is run again
            if trials[other].state in ENDED or is_interrupted:
                del self._copies[number]

    def list_folders(self) -> Mapping[str, Path]:
        """Return the folders of the runs of all processes by name."""
        return {
            trial.notes["run"]: self.folder / trial.notes["run"]
            for trial in self.study.load_trials()
            if trial.has_run
        }

    def get_stop_reason(self, name: str) -> str | None:
        """Return why a run was stopped early, or None."""
        reason = self._get_notes(name).get("stopped")
        return None if reason is None else str(reason)

    def get_last_passed_rung(self, name: str) -> int:
        """Return the last rung that a run has passed, 0 for none."""
        return int(self._get_notes(name).get("passed_rung", 0))

    def _get_notes(self, name: str) -> Mapping[str, Any]:
        number = self._trials.get(name)
        return {} if number is None else self.study.load_trials()[number].notes

    def judge_runs(
        self, config: SweepConfig, names: Collection[str]
    ) -> Mapping[str, EarlyStopDecision]:
        """Return the new decisions on these active runs."""
        if self._reporter is None:
            return judge_by_curves(self, config, names)
        found = {}
        for name in names:
            number = self._trials[name]
            values = self._reporter.load_new_values(number, self.folder / name)
            if not values:
                continue
            with wait_for_search_lock(self.folder):
                decision = self._reporter.report_values(number, values, is_over=False)
            if decision.stop_reason is not None:
                found[name] = decision
        return found

    def record_decision(self, name: str, decision: EarlyStopDecision) -> None:
        """Record a decision in the study."""
        notes: dict[str, Any] = {"passed_rung": decision.last_passed_rung}
        if decision.stop_reason is not None:
            notes |= {"stopped": decision.stop_reason, "has_failed": decision.is_failure}
        with wait_for_search_lock(self.folder):
            self.study.note(self._trials[name], **notes)

    def record_end(self, name: str, code: int) -> None:
        """Record the value of a run that has ended; an interrupted one goes on later."""
        with wait_for_search_lock(self.folder):
            number = self._trials[name]
            trial = self.study.load_trials()[number]
            if not self._end_if_over(trial, name, has_finished=code == 0):
                if code in INTERRUPTED_CODES:
                    self.study.note(number, **{INTERRUPTED: True})
                elif code > 0 and code not in LEFT_OPEN_CODES:
                    self.study.end_failed(number, exit_code=code)
            del self._trials[name]
            self._end_copies()

    def _end_if_over(self, trial: TrialRecord, name: str, *, has_finished: bool = False) -> bool:
        """End the trial of a run that has finished or was stopped early.

        Return False if the run has not come to its end, or its end, which another machine has
        written, does not appear here.
        """
        try:
            wait_for_result(self.folder / name, is_over=has_finished, print_line=self.print_line)
        except ProblemsFound as found:
            self.problems += found.problems
            self.exit_code = found.exit_code
            return False
        result = load_trial_result(self.planner, trial)
        add_trial_tag(self.folder / name, trial.number)
        if result.has_finished:
            self._end_finished(trial.number, name, result)
            return True
        if "stopped" in trial.notes:
            self._end_stopped(trial, name)
            return True
        if result.state == ARCHIVED:
            self.study.end_failed(trial.number, reason="archived before its end")
            self.print_line(f"{name}: archived before its end, skipped")
            return True
        return False

    def _end_finished(self, number: int, name: str, result: SweepRunResult) -> None:
        """Record the best value of a run that has finished."""
        reason = None
        if self._reporter is not None:
            # the others are compared with its whole curve
            values = self._reporter.load_new_values(number, self.folder / name)
            reason = self._reporter.report_values(number, values, is_over=True).stop_reason
        if result.best_value is None:
            reason = f"no finite {self.planner.sweep.config.metric} was logged"
        if reason is not None or result.best_value is None:
            self.study.end_failed(number, reason=reason)
            self.print_line(f"{name}: has failed: {reason}")
        else:
            self.study.end_complete(number, result.best_value)

    def _end_stopped(self, trial: TrialRecord, name: str) -> None:
        """Record the last value of a run that was stopped early.

        What it logged after the decision of a pruner depends on how fast it stopped: it is not
        reported, so that the next samples do not depend on it.
        """
        if trial.notes.get("has_failed"):
            self.study.end_failed(trial.number, reason=trial.notes["stopped"])
            return
        if self._reporter is None:
            curve = load_curve(self.folder / name, self.planner.sweep.config)
            for step, value in [pair for pair in curve if math.isfinite(pair[1])][-1:]:
                self.study.record_value(trial.number, step, value)
        self.study.end_pruned(trial.number)
