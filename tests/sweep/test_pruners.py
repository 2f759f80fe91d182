"""Early stopping by Optuna's pruners. The judge is a study of Optuna that is told by hand."""

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
import pytest

from tests.sweep.test_search import (
    loss_at,
    planner_of,
    points,
    run,
    run_to_end,
    sampler_seed,
    study_of,
    trials_of,
    write,
)
from titanrun.config.problems import ProblemsFound
from titanrun.sweep.curve_reports import CurveReporter
from titanrun.sweep.search_points import find_num_steps
from titanrun.sweep.search_pruners import build_pruner
from titanrun.sweep.search_study import SearchStudy

STEPS = 27
LENGTH = f"overrides: [training.steps={STEPS}]"
SPACE = {
    "optimizer.lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
    "optimizer.weight_decay": optuna.distributions.FloatDistribution(0, 1),
}
pruners = optuna.pruners
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


def hyperband() -> optuna.pruners.BasePruner:
    return pruners.HyperbandPruner(min_resource=2, max_resource=STEPS, reduction_factor=3)


RULES = {
    "{name: hyperband, first_step: 2}": hyperband,
    "{name: asha, first_step: 3, factor: 2}": lambda: pruners.SuccessiveHalvingPruner(3, 2),
    "{name: asha, first_step: 1}": lambda: pruners.SuccessiveHalvingPruner(1, 4),
    "{name: percentile, first_step: 3, startup: 2}": lambda: pruners.PercentilePruner(50.0, 2, 3),
    "{name: percentile, percentile: 20, first_step: 5}": (
        lambda: pruners.PercentilePruner(20.0, 5, 5)
    ),
    "{name: patient, patience: 8}": lambda: pruners.PatientPruner(None, 8),
    "{name: patient, patience: 4, min_delta: 0.15}": lambda: pruners.PatientPruner(None, 4, 0.15),
    "{name: patient, patience: 1, rule: {name: percentile, startup: 1, first_step: 4}}": (
        lambda: pruners.PatientPruner(pruners.PercentilePruner(50.0, 1, 4), 1)
    ),
    "{name: patient, patience: 0, rule: {name: hyperband, first_step: 2}}": (
        lambda: pruners.PatientPruner(hyperband(), 0)
    ),
}


def open_study(file: Path) -> SearchStudy:
    """Open the study as a process does that has just been started."""
    planner = planner_of(file)
    rule = planner.sweep.config.early_stopping
    assert rule is not None
    study = study_of(file)
    study.use_pruner(build_pruner(rule, find_num_steps(planner)))
    return study


def draw_curves(number: int, goal: str) -> list[list[float]]:
    """Curves of runs that get better with noise, each to its own limit."""
    source = random.Random(7)
    sign = 1 if goal == "min" else -1
    return [
        [
            sign * (limit + 3 / (1 + step) + source.gauss(0, 0.3))
            for limit in [source.uniform(0, 3)]
            for step in range(1, STEPS + 1)
        ]
        for _ in range(number)
    ]


def log(folder: Path, values: Sequence[float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))


def judge_by_hand(
    judge: optuna.Study, turns: Sequence[tuple[int, int]], curves: Sequence[Sequence[float]]
) -> dict[int, int]:
    """Report each curve's next values in these turns. Return the last step of pruned trials."""
    trials = [judge.ask() for _ in curves]
    done = [0] * len(curves)
    pruned: dict[int, int] = {}
    for number, more in turns:
        for _ in range(more):
            if number in pruned or done[number] == STEPS:
                continue
            done[number] += 1
            trials[number].report(curves[number][done[number] - 1], done[number])
            if trials[number].should_prune():
                pruned[number] = done[number]
                judge.tell(trials[number], state=optuna.trial.TrialState.PRUNED)
            elif done[number] == STEPS:
                best = min if judge.direction.name == "MINIMIZE" else max
                judge.tell(trials[number], best(curves[number]))
    return pruned


@pytest.mark.parametrize("goal", ["min", "max"])
@pytest.mark.parametrize("rule", RULES)
def test_runs_are_stopped_at_the_steps_at_which_optuna_prunes_them(
    rule: str, goal: str, tmp_path: Path
) -> None:
    """Several runs at once, which log one to nine steps between two looks at them."""
    file = write(
        tmp_path,
        "count: 16, sampler: random",
        more=f"early_stopping: {rule}\n{LENGTH}\ngoal: {goal}",
    )
    study, curves = open_study(file), draw_curves(16, goal)
    source = random.Random(3)
    turns = [
        (number, source.randint(1, 9))
        for start in range(0, 16, 4)
        for _ in range(STEPS)
        for number in source.sample(range(start, start + 4), 4)
    ]
    config = planner_of(file).sweep.config
    reporter = CurveReporter(study, config)
    for number in range(16):
        study.note(study.ask().number, run=str(number), point={})
    done = [0] * 16
    stopped: dict[int, int] = {}
    for number, more in turns:
        if number in stopped or done[number] == STEPS:
            continue
        done[number] = min(STEPS, done[number] + more)
        folder = tmp_path / "runs" / str(number)
        log(folder, curves[number][: done[number]])
        values = reporter.load_new_values(number, folder)
        reason = reporter.report_values(number, values, is_over=False).stop_reason
        trial = study.load_trials()[number]
        if reason is not None:
            stopped[number] = trial.reported_step
            value = curves[number][trial.reported_step - 1]
            assert f"ends it at step {trial.reported_step} with loss {value:.5g}" in reason
            study.end_pruned(number)
            assert study.load_trials()[number].value == value
        elif done[number] == STEPS:
            study.end_complete(number, (min if goal == "min" else max)(curves[number]))
    direction = "minimize" if goal == "min" else "maximize"
    judge = optuna.create_study(
        study_name=(tmp_path / "runs").as_posix(), pruner=RULES[rule](), direction=direction
    )
    expected = judge_by_hand(judge, turns, curves)
    assert stopped == expected and 0 < len(expected) < 16
    assert [(trial.state, trial.value) for trial in study.load_trials()] == [
        (trial.state.name.lower(), trial.value) for trial in judge.trials
    ]


def test_a_search_with_hyperband_draws_as_optuna_does_however_often_it_is_started(
    tmp_path: Path,
) -> None:
    """The sampler learns from pruned trials too, by their last step and value."""
    more = f"early_stopping: {{name: hyperband, first_step: 2}}\n{LENGTH}"
    file = write(tmp_path, "count: 18, startup: 3", more=more)
    judge = optuna.create_study(study_name=(tmp_path / "runs").as_posix(), pruner=hyperband())
    config = planner_of(file).sweep.config
    states = []
    for number in range(18):
        study = open_study(file)
        trial = study.ask()
        judge.sampler = optuna.samplers.TPESampler(
            seed=sampler_seed(number), n_startup_trials=3, multivariate=True, constant_liar=True
        )
        asked = judge.ask(SPACE)
        assert trial.drawn == asked.params
        values = [loss_at(asked.params) + 1 / step for step in range(1, STEPS + 1)]
        folder = tmp_path / "runs" / str(number)
        log(folder, values)
        reporter = CurveReporter(study, config)
        study.note(number, run=str(number), point={})
        found = reporter.report_values(
            number, reporter.load_new_values(number, folder), is_over=False
        )
        if found.stop_reason is None:
            study.end_complete(number, values[-1])
        else:
            study.end_pruned(number)
        for step, value in enumerate(values, start=1):
            asked.report(value, step)
            if asked.should_prune():
                judge.tell(asked, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            judge.tell(asked, values[-1])
        states.append(judge.trials[number].state.name.lower())
        assert study.load_trials()[number].state == states[-1]
    assert {*states} == {"pruned", "complete"}


def test_a_step_that_is_logged_again_is_reported_once(tmp_path: Path) -> None:
    """A run that was killed goes on from its last checkpoint, and logs some steps again."""
    more = f"early_stopping: {{name: patient, patience: 9}}\n{LENGTH}"
    file = write(tmp_path, "count: 3", more=more)
    study, config = open_study(file), planner_of(file).sweep.config
    study.note(study.ask().number, run="a", point={})
    folder = tmp_path / "runs" / "a"
    log(folder, [5, 4, 3])
    assert [*CurveReporter(study, config).load_new_values(0, folder)] == [(1, 5), (2, 4), (3, 3)]
    reporter = CurveReporter(study, config)
    reporter.report_values(0, reporter.load_new_values(0, folder), is_over=False)
    with (folder / "metrics.jsonl").open("a") as file_:
        file_.write('{"step": 2, "loss": 4.5}\n{"step": 3, "loss": 3.5}\n{"step": 4, "loss": 2}\n')
    # the same process, and another one
    for again in (reporter, CurveReporter(study_of(file), config)):
        assert [*again.load_new_values(0, folder)] == [(4, 2)]


def ended(trials: Sequence[object], state: str) -> int:
    return sum(trial.state == state for trial in trials)  # type: ignore[attr-defined]


def losses_of(folder: Path, notes: Mapping[str, object]) -> list[float]:
    text = (folder / "runs" / str(notes["run"]) / "metrics.jsonl").read_text()
    return [float(json.loads(line)["loss"]) for line in text.splitlines()]


@pytest.mark.slow
def test_hyperband_ends_at_least_a_third_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real processes. The groups depend on the name of the folder."""
    more = f"early_stopping: {{name: hyperband, first_step: 3}}\n{LENGTH}\nslots: 3"
    file = write(tmp_path, "count: 18, sampler: random, seed: 4", more=more)
    file.write_text(file.read_text().replace(str(tmp_path / "runs"), "runs"))
    monkeypatch.chdir(tmp_path)
    said = run(file, FAKE_STEPS=STEPS, FAKE_SECONDS=0.04)
    trials = trials_of(file)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert 6 <= len(pruned) < 18 and len(pruned) + ended(trials, "complete") == 18, said
    assert said.count("stopped early: hyperband ends it at step") == len(pruned)
    for trial in trials:
        losses = losses_of(tmp_path, trial.notes)
        if trial.state == "pruned":
            # what was logged after the decision, until the run had stopped, is not reported
            assert trial.value == losses[trial.reported_step - 1]
            assert trial.reported_step <= len(losses) < STEPS
        else:
            assert trial.value == min(losses) and trial.reported_step == STEPS == len(losses)
    # the best run is never ended
    assert min(points(trials), key=loss_at) in points(
        [trial for trial in trials if trial.state == "complete"]
    )
    again = run(file, FAKE_STEPS=STEPS)
    assert ": started" not in again


def test_a_run_whose_metric_is_nan_is_a_failed_trial(tmp_path: Path) -> None:
    """One that is stopped for it, and one that ended before anybody looked."""
    for name, seconds in (("stopped", 0.1), ("finished", 0.0)):
        file = write(
            tmp_path / name,
            "count: 4, sampler: random, seed: 1",
            more=f"early_stopping: {{name: patient, patience: 20}}\n{LENGTH}\nslots: 4",
        )
        code, said = run_to_end(file, FAKE_STEPS=9, FAKE_SECONDS=seconds, FAKE_NAN_ABOVE=1e-3)
        assert code == 0, said
        trials = trials_of(file)
        assert {trial.state for trial in trials} == {"complete", "failed"}
        for trial in trials:
            losses = losses_of(tmp_path / name, trial.notes)
            has_nan = any(map(math.isnan, losses))
            assert has_nan == (trial.notes["point"]["optimizer.lr"] > 1e-3)
            assert trial.state == ("failed" if has_nan else "complete")
            if has_nan:
                assert trial.notes["reason"] == "its loss is NaN at step 2" and len(losses) < 10
                assert (len(losses) < 9) == (name == "stopped")


def test_a_rule_cannot_change_during_a_search(tmp_path: Path) -> None:
    rule = "early_stopping: {{name: asha, first_step: {}}}"
    study_of(write(tmp_path, "count: 5", more=rule.format(5)))
    with pytest.raises(ProblemsFound, match="was begun with other early_stopping"):
        study_of(write(tmp_path, "count: 5", more=rule.format(6)))
    with pytest.raises(ProblemsFound, match="was begun with other early_stopping"):
        study_of(write(tmp_path, "count: 5"))
