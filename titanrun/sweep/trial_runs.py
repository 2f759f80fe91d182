"""Runs of a search's trials: which are left, which are equal, and what became of each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from titanrun.recipe.rundir.run_files import RUN_JSON, TAGS, write_indented_json
from titanrun.runs.run_summary import read_tags
from titanrun.sweep.folder_lock import is_search_process_alive
from titanrun.sweep.search_points import PointPlanner, are_equal_points
from titanrun.sweep.search_study import SearchStudy, TrialRecord
from titanrun.sweep.sweep_results import SweepRunResult, load_sweep_result


def count_open_trials(planner: PointPlanner, study: SearchStudy) -> int:
    """Return the number of trials to draw, and of those whose process is dead."""
    trials = [trial for trial in study.load_trials() if trial.has_run]
    dead = [
        trial
        for trial in trials
        if trial.state == "running"
        and "same_as" not in trial.notes
        and not is_search_process_alive(planner.sweep.folder, trial.notes["process"])
    ]
    return max(0, planner.count - len(trials)) + len(dead)


def find_same_point(
    trials: Sequence[TrialRecord], values: Mapping[str, object]
) -> TrialRecord | None:
    """Return the trial that has a run with the same values."""
    return next(
        (
            trial
            for trial in trials
            if trial.has_run
            and "same_as" not in trial.notes
            and are_equal_points(trial.notes["point"], dict(values))
        ),
        None,
    )


def load_trial_result(planner: PointPlanner, trial: TrialRecord) -> SweepRunResult:
    """Load the result of a trial's run so far."""
    return load_sweep_result(
        trial.notes["run"],
        planner.sweep.folder / trial.notes["run"],
        trial.notes["point"],
        planner.sweep.config,
        is_ended="stopped" in trial.notes,
        trial=trial.number,
    )


def add_trial_tag(folder: Path, number: int) -> None:
    """Add the number of its trial to the tags of a run."""
    tag, tags = f"trial-{number}", read_tags(folder)
    if (folder / RUN_JSON).is_file() and tag not in tags:
        write_indented_json(folder / TAGS, {"tags": [*tags, tag]})
