"""Searches: what is drawn, by how many processes, and what remains when one of them dies."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.sweep import fake_sweep
from titanrun.cli import sweep as sweep_command
from titanrun.cli.sweep_search import open_search_study
from titanrun.config.problems import ProblemsFound
from titanrun.sweep.search_points import PointPlanner, build_planner
from titanrun.sweep.search_runs import SearchRuns
from titanrun.sweep.search_study import SearchStudy, TrialRecord
from titanrun.sweep.sweep_file import read_sweep

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
ROOT = Path(__file__).parents[2]
RATE = "optimizer.lr: {log_uniform: [1.0e-5, 1.0e-1]}"
DECAY = "optimizer.weight_decay: {uniform: [0, 1]}"


def write(folder: Path, search: str, *, more: str = "", values: str = f"{RATE}, {DECAY}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sweep.yaml"
    text = f"version: 1\nrecipe: {RECIPE}\nfolder: {folder / 'runs'}\n{more}\n"
    file.write_text(f"{text}search: {{{search}, values: {{{values}}}}}\n", encoding="utf-8")
    return file


def start(file: Path, **environment: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.fake_sweep", str(file)],
        cwd=ROOT,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_to_end(file: Path, **environment: object) -> tuple[int, str]:
    """Run a search in this process: its exit code and its output."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        for name, value in environment.items():
            patch.setenv(name, str(value))
        code = fake_sweep.main(str(file))
    return code, said.getvalue()


def run(file: Path, **environment: object) -> str:
    """Run a search to its end, and return its output."""
    code, said = run_to_end(file, **environment)
    assert code == 0, said
    return said


def planner_of(file: Path) -> PointPlanner:
    planner = build_planner(read_sweep(file), [], {})
    planner.sweep.folder.mkdir(parents=True, exist_ok=True)
    return planner


def study_of(file: Path) -> SearchStudy:
    return open_search_study(planner_of(file))


def trials_of(file: Path) -> list[TrialRecord]:
    return study_of(file).load_trials()


def points(trials: list[TrialRecord]) -> list[Mapping[str, Any]]:
    return [trial.notes["point"] for trial in trials if trial.has_run]


def loss_at(point: Mapping[str, Any]) -> float:
    decay = point.get("optimizer.weight_decay", 0.0)
    return (math.log10(point["optimizer.lr"]) + 3) ** 2 + 0.01 * float(decay)


def wait_for(is_so: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 200
    while not is_so():
        assert process.poll() is None and time.monotonic() < end, process.communicate()[0]
        time.sleep(0.02)


def finished_runs(file: Path) -> int:
    statuses = (file.parent / "runs").glob("*/status.json")
    return sum(json.loads(path.read_text())["state"] == "finished" for path in statuses)


def kill_runs_of(folder: Path) -> int:
    """Kill every run that still trains. Return how many there were."""
    killed = 0
    for path in (folder / "runs").glob("*/status.json"):
        status = json.loads(path.read_text())
        if status["state"] == "running":
            try:
                os.kill(status["pid"], signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                continue
    return killed


@pytest.mark.parametrize("kills_runs", [False, True], ids=["runs-go-on", "runs-die-too"])
def test_30_trials_of_two_processes_survive_the_death_of_one(
    kills_runs: bool, tmp_path: Path
) -> None:
    file = write(tmp_path, "count: 30, seed: 5, startup: 5", more="slots: 2")
    seconds = 0.3 if kills_runs else 0.1
    with (
        start(file, FAKE_SECONDS=seconds) as first,
        start(file, FAKE_SECONDS=seconds) as second,
    ):
        wait_for(lambda: finished_runs(file) >= 8, first)
        first.kill()
        if kills_runs:
            # those of the second process too, which are left for the next start of the sweep
            wait_for(lambda: kill_runs_of(tmp_path) > 0, second)
        said = second.communicate(timeout=300)[0]
        assert second.returncode in (0, 137) if kills_runs else second.returncode == 0, said
    if kills_runs:
        said = run(file)
    # at most one draw was interrupted, which has no run and does not count
    trials = [trial for trial in trials_of(file) if trial.has_run]
    assert len({trial.number for trial in trials}) == 30 >= len(trials_of(file)) - 1
    assert {trial.state for trial in trials} == {"complete"}, said
    assert [trial.value for trial in trials] == pytest.approx(
        [loss_at(point) for point in points(trials)]
    )
    folders = [path.parent for path in (tmp_path / "runs").glob("*/run.json")]
    assert {path.name for path in folders} == {trial.notes["run"] for trial in trials}
    starts = [len(json.loads((path / "run.json").read_text())["starts"]) for path in folders]
    steps = [(path / "metrics.jsonl").read_text().count("\n") for path in folders]
    # no run was trained twice: one that died went on after its last step
    assert set(steps) == {3} and (max(starts) == 2 if kills_runs else max(starts) == 1)
    assert {tuple(json.loads((path / "tags.json").read_text())["tags"]) for path in folders} == {
        (f"trial-{trial.number}",) for trial in trials
    }


def test_a_search_that_is_killed_and_started_again_draws_what_it_would_have_drawn(
    tmp_path: Path,
) -> None:
    search = "count: 12, seed: 2, startup: 3, first: [{optimizer.lr: 1.0e-4}]"
    uncut, cut = (write(tmp_path / name, search) for name in ("uncut", "cut"))
    run(uncut)
    process = start(cut, FAKE_SECONDS=0.1)
    wait_for(lambda: finished_runs(cut) >= 5, process)
    process.kill()
    process.communicate()
    assert len(trials_of(cut)) < 12
    run(cut)
    expected = points(trials_of(uncut))
    assert points(trials_of(cut)) == expected and len(expected) == 12
    assert expected[0]["optimizer.lr"] == 1e-4
    assert "12 trials" in run(cut) and points(trials_of(cut)) == expected


SAMPLERS: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(
        seed=seed, n_startup_trials=4, multivariate=True, constant_liar=True
    ),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=4),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=4),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed: optuna.samplers.QMCSampler(
        seed=0, scramble=True, warn_independent_sampling=False
    ),
}


def sampler_seed(number: int) -> int:
    import hashlib

    return int(hashlib.sha256(f"0 {number}".encode()).hexdigest()[:8], 16)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_sampler_draws_as_optuna_does_in_memory(sampler: str, tmp_path: Path) -> None:
    """The journal is opened anew for each trial; the judge is one study in memory."""
    startup = "" if sampler in ("random", "qmc") else ", startup: 4"
    file = write(tmp_path, f"sampler: {sampler}, count: 8{startup}")
    judge = optuna.create_study()
    space = {
        "optimizer.lr": optuna.distributions.FloatDistribution(1e-5, 1e-1, log=True),
        "optimizer.weight_decay": optuna.distributions.FloatDistribution(0, 1),
    }
    for number in range(8):
        study = study_of(file)
        trial = study.ask()
        point = planner_of(file).space.build_point(trial.drawn)
        values = {path: node.value for path, node in point.items()}
        study.note(trial.number, point=values, run=str(number))
        study.end_complete(trial.number, loss_at(values))
        judge.sampler = SAMPLERS[sampler](sampler_seed(number))
        asked = judge.ask(space)
        assert trial.drawn == asked.params
        assert values == {path: float(f"{value:.4g}") for path, value in asked.params.items()}
        judge.tell(asked, loss_at(values))
        assert trial.notes["after"] == list(range(number))


def best_of(file: Path) -> float:
    planner, study = planner_of(file), study_of(file)
    best = math.inf
    for _ in range(12):
        trial = study.ask()
        point = planner.space.build_point(trial.drawn)
        values = {path: node.value for path, node in point.items()}
        study.note(trial.number, point=values, run=str(trial.number))
        study.end_complete(trial.number, loss_at(values))
        best = min(best, loss_at(values))
    return best


def test_twelve_trials_find_better_values_than_twelve_random_ones(tmp_path: Path) -> None:
    found = {
        sampler: [
            best_of(write(tmp_path / f"{sampler}-{seed}", f"{search}, count: 12, seed: {seed}"))
            for seed in range(5)
        ]
        for sampler, search in (
            ("tpe", "sampler: tpe, startup: 4"),
            ("cmaes", "sampler: cmaes, startup: 1"),
            ("random", "sampler: random"),
        )
    }
    means = {name: sum(values) / 5 for name, values in found.items()}
    assert means["tpe"] < means["random"] and means["cmaes"] < means["random"], means


def test_importance_ranks_what_moves_the_metric_above_what_does_not(tmp_path: Path) -> None:
    file = write(tmp_path, "sampler: random, count: 30")
    run(file)
    shares = study_of(file).compute_importance()
    assert list(shares) == ["optimizer.lr", "optimizer.weight_decay"]
    assert shares["optimizer.lr"] > 0.8 and sum(shares.values()) == pytest.approx(1)


def test_max_runs_limits_a_search(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 6, sampler: random", more="max_runs: 3")
    run(file)
    assert len(trials_of(file)) == 3


def test_values_that_are_drawn_twice_train_once(tmp_path: Path) -> None:
    values = "optimizer.lr: {choice: [1.0e-3, 1.0e-2]}, optimizer.weight_decay: {choice: [0, 1.0]}"
    file = write(tmp_path, "count: 9, sampler: random", values=values, more="slots: 3")
    said = run(file, FAKE_SECONDS=0.1)
    trials = trials_of(file)
    assert len(trials) == 9 and {trial.state for trial in trials} == {"complete"}, said
    assert [trial.value for trial in trials] == pytest.approx(
        [loss_at(point) for point in points(trials)]
    )
    names = {trial.notes["run"] for trial in trials}
    assert len(names) <= 4 and said.count(": started") == len(names)


def test_points_that_fail_a_filter_or_a_rule_are_drawn_again(tmp_path: Path) -> None:
    # 3 heads do not divide the dimension of 256
    values = f"{RATE}, model.n_heads: {{choice: [4, 16]}}"
    more = "filters: [optimizer.lr > 1.0e-3, model.n_heads > 4]"
    file = write(tmp_path, "count: 5, sampler: random", values=values, more=more)
    said = run(file)
    trials = trials_of(file)
    kept = points(trials)
    assert len(kept) == 5 and len(trials) > 5 and "it does not satisfy the filters" in said
    assert all(point["optimizer.lr"] > 1e-3 and point["model.n_heads"] == 16 for point in kept)
    assert {trial.state for trial in trials if not trial.has_run} == {"failed"}
    never = write(tmp_path / "never", "count: 5", more="filters: [optimizer.lr > 1]")
    code, said = run_to_end(never)
    assert "100 consecutive samples cannot be run" in said and code == 2


def test_a_failed_run_is_a_failed_trial_and_the_search_goes_on(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 8, sampler: random")
    code, said = run_to_end(file, FAKE_FAIL_ABOVE=1e-3)
    assert code == 5 and "failed with exit code 5: error: the loss is not" in said
    trials = trials_of(file)
    assert len(trials) == 8
    for trial in trials:
        is_bad = trial.notes["point"]["optimizer.lr"] > 1e-3
        assert (trial.state, trial.notes.get("exit_code")) == (
            ("failed", 5) if is_bad else ("complete", None)
        )
    assert {trial.state for trial in trials} == {"failed", "complete"}


def test_early_stopping_prunes_trials_and_keeps_their_last_value(tmp_path: Path) -> None:
    more = "early_stopping: {name: halving, first_step: 4, factor: 2}"
    file = write(tmp_path, "count: 10, sampler: random, seed: 1", more=more)
    said = run(file, FAKE_STEPS=40, FAKE_SECONDS=0.03, FAKE_FALL=-0.1)
    trials = trials_of(file)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert pruned and len(pruned) < 10 and said.count("stopped early: it ranks") == len(pruned)
    for trial in pruned:
        metrics = (tmp_path / "runs" / trial.notes["run"] / "metrics.jsonl").read_text()
        losses = [json.loads(line)["loss"] for line in metrics.splitlines()]
        assert trial.value == losses[-1] > min(losses) and len(losses) < 40
    again = run(file, FAKE_STEPS=40, FAKE_SECONDS=0.03)
    assert ": started" not in again


def test_a_process_of_another_machine_is_left_alone_until_it_is_silent(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 3, sampler: random")
    study = study_of(file)
    trial = study.ask()
    planner = planner_of(file)
    name = planner.build_run(planner.try_point(planner.space.build_point(trial.drawn)), {}).name
    values = {path: node.value for path, node in planner.space.build_point(trial.drawn).items()}
    study.note(trial.number, point=values, process="far-1", run=name)
    machine = tmp_path / "runs" / "machines" / "far-1.json"
    machine.parent.mkdir()
    machine.write_text(json.dumps({"host": "far", "boot_id": "x", "pid": 1}))
    run(file)
    assert [trial.state for trial in trials_of(file)] == ["running", "complete", "complete"]
    os.utime(machine, (time.time() - 700, time.time() - 700))
    run(file)
    assert [trial.state for trial in trials_of(file)] == ["complete"] * 3


def test_a_torn_line_of_the_journal_is_cut_and_a_first_point_is_not_lost(tmp_path: Path) -> None:
    first = "first: [{optimizer.lr: 1.0e-4}, {optimizer.lr: 2.0e-4}]"
    file = write(tmp_path, f"count: 4, {first}")
    study = study_of(file)
    study.ask()  # and dies before it has noted the run
    journal = tmp_path / "runs" / "optuna.journal"
    with journal.open("ab") as out:
        out.write(b'{"op_code":8,"worker')
    run(file)
    rates = [point["optimizer.lr"] for point in points(trials_of(file))]
    assert len(rates) == 4 and {1e-4, 2e-4} < set(rates)


def said(file: Path) -> list[str]:
    with pytest.raises(ProblemsFound) as found:
        study_of(file)
    return [f"{item.code}: {item.message}" for item in found.value.problems]


def test_a_search_of_other_settings_or_a_foreign_file_is_refused(tmp_path: Path) -> None:
    study_of(write(tmp_path, "count: 5"))
    study_of(write(tmp_path, "count: 9"))
    journal = tmp_path / "runs" / "optuna.journal"
    other = write(tmp_path, "count: 5, seed: 1", more="metric: validation/loss")
    expected = f"conflict: the search in '{journal}' was begun with other metric or seed"
    assert said(other) == [expected]
    filtered = write(tmp_path, "count: 5", more="filters: [optimizer.lr < 0.01]")
    assert said(filtered) == [f"conflict: the search in '{journal}' was begun with other filters"]
    journal.write_text("step,loss\n1,2\n3,4\n")
    (problem,) = said(write(tmp_path, "count: 5"))
    assert problem.startswith(f"usage: '{journal}' cannot be used as the journal of a search:")
    (problem,) = said(write(tmp_path, "count: 5, storage: 'sqlite:////nowhere/x.db'"))
    assert "'sqlite:////nowhere/x.db' cannot be used as the database" in problem


def write_with_recipe(folder: Path, search: str) -> tuple[Path, Path]:
    """Write a search whose recipe extends another file. Return the search and that file."""
    base = folder / "base.yaml"
    base.write_text(f"extends: [{RECIPE}]\ndevice: cpu\n")
    (folder / "own.yaml").write_text("version: 1\nextends: [base.yaml]\n")
    file = write(folder, search)
    file.write_text(file.read_text().replace(f"recipe: {RECIPE}", "recipe: own.yaml"))
    return file, base


def test_a_recipe_that_is_edited_stops_the_search_until_the_edit_is_undone(tmp_path: Path) -> None:
    file, base = write_with_recipe(tmp_path, "count: 4, sampler: random")
    before = base.read_text()

    def edit(line: str) -> None:
        base.write_text(f"{before}{line}\n")

    with pytest.MonkeyPatch.context() as patch:
        take_next = SearchRuns._take_next_run

        def take_and_edit(source: SearchRuns) -> object:
            found = take_next(source)
            edit("training: {seq_len: 128}")
            return found

        patch.setattr(SearchRuns, "_take_next_run", take_and_edit)
        code, output = run_to_end(file)
    assert code == 2 and "the recipe was edited since the search began" in output
    assert [trial.state for trial in study_trials(file, base, before)] == ["complete"]
    edit("training: {seq_len: 128}")
    with pytest.raises(ProblemsFound, match="was begun with other recipe content"):
        fake_sweep.main(str(file))
    assert sweep_command.run([str(file), "--table"]) == 0
    # what decides nothing about the values may change
    edit("description: the second half\nlaunch: {name: local, max_restarts: 1}")
    run(file)
    assert [trial.state for trial in trials_of(file)] == ["complete"] * 4


def study_trials(file: Path, base: Path, text: str) -> list[TrialRecord]:
    """Load the trials of a search whose base has this text again."""
    base.write_text(text)
    return trials_of(file)


def test_a_database_of_one_machine_works_and_is_refused_for_several(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    file = write(tmp_path, f"count: 4, sampler: random, storage: '{storage}'")
    run(file)
    assert [trial.state for trial in trials_of(file)] == ["complete"] * 4
    machine = tmp_path / "runs" / "machines" / "far-1.json"
    machine.write_text(json.dumps({"host": "far", "boot_id": "x", "pid": 1}))
    with pytest.raises(ProblemsFound, match="a database file is for one machine"):
        sweep_command.run([str(file)])


def test_the_command_shows_runs_results_and_importance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "count: 12, sampler: random")
    assert sweep_command.run([str(file), "--table"]) == 0
    assert "has no trials yet" in capsys.readouterr().err
    run(file)
    assert sweep_command.run([str(file), "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12 and all("optimizer.lr=" in line for line in lines)
    assert sweep_command.run([str(file), "--table", "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["trial"] for row in rows] == list(range(12))
    assert [row["value"] for row in rows] == pytest.approx([loss_at(row["values"]) for row in rows])
    assert sweep_command.run([str(file), "--table"]) == 0
    head, best = capsys.readouterr().out.splitlines()[:2]
    assert (
        head.split()[:2] == ["run", "trial"]
        and min(rows, key=lambda row: row["value"])["run"] == best.split()[0]
    )
    picture = tmp_path / "importance.svg"
    assert sweep_command.run([str(file), "--importance", "--out", str(picture)]) == 0
    shares = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {path for path, _ in shares} == {"optimizer.lr", "optimizer.weight_decay"}
    assert sum(float(share) for _, share in shares) == pytest.approx(1, abs=2e-3)
    assert picture.read_text().count("<rect") == 2


def test_what_a_search_was_begun_with_need_not_be_repeated_to_look_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "count: 3, sampler: random")
    assert fake_sweep.main(str(file), "metrics.log_freq=7") == 0
    for option in ("--table", "--importance"):
        assert sweep_command.run([str(file), option]) == 0
    capsys.readouterr()
    assert sweep_command.run([str(file), "--list"]) == 0
    assert capsys.readouterr().out.count("metrics.log_freq=7") == 3
    with pytest.raises(ProblemsFound, match="was begun with other overrides"):
        sweep_command.run([str(file), "--table", "metrics.log_freq=8"])


def test_a_signal_reaches_the_runs_as_it_is_and_a_second_ctrl_c_still_saves(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "count: 4, sampler: random", more="slots: 2")
    process = start(file, FAKE_STEPS=100, FAKE_SECONDS=0.5)
    statuses = tmp_path / "runs"
    wait_for(lambda: len(list(statuses.glob("*/status.json"))) == 2, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert said.count("interrupted, resumes when the sweep is run again") == 2
    found = [json.loads(path.read_text()) for path in statuses.glob("*/status.json")]
    assert {status["state"] for status in found} == {"preempted"}
    assert all(
        status["signals"] in ([signal.SIGINT], [signal.SIGINT, signal.SIGTERM]) for status in found
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--launch"], "launches on this machine, but --launch submits to"),
        (["--importance", "--out", "x.gif"], "'x.gif' is not an SVG file"),
        (["--out", "x.svg"], "--out is for --importance"),
    ],
)
def test_options_that_do_not_fit_a_search_say_so(
    options: list[str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ProblemsFound, match=message):
        sweep_command.run([str(write(tmp_path, "count: 3")), *options])
