"""The Slurm array of a search, without Slurm: its script, and tasks that are killed or repeated."""

import json
import os
import signal
import subprocess
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sweep.fake_sweep import FAKE
from tests.sweep.test_search import trials_of, write_with_recipe
from tests.sweep.test_search import write as write_search
from tests.sweep.test_without_optuna import COMMANDS, HIDE, python
from titanrun.cli import sweep as sweep_command
from titanrun.cli.sweep_search import open_search_study, train_search
from titanrun.config.problems import ProblemsFound
from titanrun.launch.launch_env import get_environment
from titanrun.sweep.folder_lock import MACHINES
from titanrun.sweep.search_array import SrunStarter, get_task_name
from titanrun.sweep.search_points import build_planner
from titanrun.sweep.slurm_array import get_array_config
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.sweep_runner import LocalStarter
from titanrun.sweep.trial_runs import count_open_trials

SLURM = "slots: 3\noverrides: ['launch={name: slurm, time_limit: 2h}']"
SKYPILOT = "{name: skypilot, volumes: [{volume: runs, path: /runs}]}"
KUBERNETES = "{name: kubernetes, image: x, volumes: [{claim: runs, path: /runs}]}"
RATE = "optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}"


def write(folder: Path, search: str, *, more: str = SLURM, values: str = RATE) -> Path:
    return write_search(folder, search, more=more, values=values)


def run_task(file: Path, number: int, **environment: object) -> int:
    """Run a task of the array with the fake trainer. Return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, str(value))
        planner = build_planner(read_sweep(file), [], {})
        planner.sweep.folder.mkdir(parents=True, exist_ok=True)
        starter = LocalStarter(planner.sweep.recipe, 1, FAKE)
        options = Namespace(quiet=False)
        return train_search(planner, [], options, starter=starter, task=f"slurm-7-{number}")


def count_tasks(file: Path) -> int:
    planner = build_planner(read_sweep(file), [], {})
    return count_open_trials(planner, open_search_study(planner))


def kill_first_run(folder: Path) -> None:
    """Kill the only run that trains, as soon as it has made a step."""
    for path in (folder / "runs").glob("*/status.json"):
        status = json.loads(path.read_text())
        if status["state"] == "running" and status["step"] > 0:
            os.kill(status["pid"], signal.SIGKILL)


def test_a_dry_run_shows_the_array_and_needs_neither_slurm_nor_optuna(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, "count: 5")
    said = python(HIDE + COMMANDS, f"sweep {file} --dry-run training.steps=4", PATH="/bin")
    assert "#SBATCH --array=0-4%3\n" in said and "#SBATCH --time=02:00:00" in said
    assert f"-m titanrun sweep {file} training.steps=4 --array-task\n" in said
    assert "srun" not in said and not (tmp_path / "runs").exists()
    end = 'exit "$code"\n'
    script = said[said.index("#!/bin/bash") : said.index(end) + len(end)]
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_a_dry_run_of_a_search_that_has_begun_shows_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "count: 3, sampler: random")
    assert run_task(file, 0) == 0 and run_task(file, 1) == 0
    sweep_command.run([str(file), "--dry-run"])
    assert "--array=0-0%3" in capsys.readouterr().out
    assert run_task(file, 2) == 0 and run_task(file, 3) == 0
    assert len(trials_of(file)) == 3
    sweep_command.run([str(file), "--dry-run"])
    said = capsys.readouterr()
    assert said.out == "" and "nothing to do: 3 trials" in said.err


@pytest.mark.parametrize(
    ("search", "more", "values", "message"),
    [
        ("count: 2", "slots: 1", RATE, "launches on this machine, but --launch submits to Slurm"),
        (
            "count: 2",
            f"overrides: ['launch={SKYPILOT}', dump_folder=/runs/x]",
            RATE,
            "launches on SkyPilot, but --launch submits to Slurm and Kubernetes only",
        ),
        (
            "count: 2",
            "overrides: [dump_folder=/runs/x]",
            f"launch: {{choice: [slurm, {KUBERNETES}]}}",
            "this sweep varies launch",
        ),
        ("count: 2, storage: 'sqlite:///x.db'", SLURM, RATE, "cannot share a database file"),
        (
            "count: 2",
            SLURM,
            "launch.cpus_per_task: {integer: [1, 2]}",
            "all tasks of an array have equal resources",
        ),
    ],
)
def test_what_an_array_cannot_do_is_said_before_it_is_submitted(
    search: str, more: str, values: str, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, search, more=more, values=values)
    for option in ("--launch", "--dry-run"):
        with pytest.raises(ProblemsFound, match=message):
            sweep_command.run([str(file), option])
    assert not (tmp_path / "runs").exists()


def test_a_task_is_one_of_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "count: 2")
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID", raising=False)
    with pytest.raises(ProblemsFound, match="--array-task is for the tasks of a Slurm array"):
        sweep_command.run([str(file), "--array-task"])
    with pytest.raises(ProblemsFound, match="excludes the other options"):
        sweep_command.run([str(file), "--array-task", "--table"])
    assert get_task_name({"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}) == "slurm-12-3"
    grid = tmp_path / "grid.yaml"
    grid.write_text(file.read_text().partition("search:")[0] + "grid: {optimizer.lr: [0.1]}\n")
    with pytest.raises(ProblemsFound, match="--array-task needs a search"):
        sweep_command.run([str(grid), "--array-task"])


def test_a_task_that_is_killed_leaves_its_trial_to_the_next_one_or_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "count: 3, sampler: random")
    for again in (0, 1):
        with monkeypatch.context() as patch:
            patch.setattr(
                "titanrun.sweep.search_runs.SearchRuns.refresh",
                lambda source: kill_first_run(tmp_path),
            )
            assert run_task(file, 2 * again, FAKE_STEPS=40, FAKE_SECONDS=0.2) == 137
        left = trials_of(file)[again]
        assert left.state == "running" and count_tasks(file) == 3 - again
        # a process of that name on a machine that is gone looks alive for ten minutes
        machine = {"host": "far", "boot_id": "x", "pid": 1}
        (tmp_path / "runs" / MACHINES / f"slurm-7-{2 * again}.json").write_text(json.dumps(machine))
        assert count_tasks(file) == 2 - again
        if not again:
            assert run_task(file, 0) == 0
        else:
            (tmp_path / "runs" / MACHINES / "slurm-7-2.json").unlink()
            assert run_task(file, 5) == 0
        assert trials_of(file)[again].state == "complete"
    assert count_tasks(file) == 1


def test_a_run_that_is_killed_again_and_again_is_a_failed_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "count: 2, sampler: random")
    killer = tmp_path / "killed.sh"
    killer.write_text("kill -KILL $$\n")
    monkeypatch.setattr("tests.sweep.test_search_array.FAKE", ("/bin/sh", str(killer)))
    for number in range(4):
        assert run_task(file, number) == 137
    assert [trial.state for trial in trials_of(file)] == ["running"]
    monkeypatch.undo()
    assert run_task(file, 4) == 0
    assert "has failed: killed, or not started, 4 times after step 0" in capsys.readouterr().err
    assert [trial.state for trial in trials_of(file)] == ["failed", "complete"]


def test_a_run_that_was_asked_to_stop_may_go_on_any_number_of_times(tmp_path: Path) -> None:
    file = write(tmp_path, "count: 1, sampler: random")
    stopped = tmp_path / "stopped.sh"
    stopped.write_text("exit 143\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.sweep.test_search_array.FAKE", ("/bin/sh", str(stopped)))
        for _ in range(6):
            assert run_task(file, 0) == 143
    assert run_task(file, 0) == 0
    assert [trial.state for trial in trials_of(file)] == ["complete"]


def test_a_repeated_point_takes_no_task_and_gets_its_value_from_whoever_trains_it(
    tmp_path: Path,
) -> None:
    values = "optimizer.lr: {choice: [1.0e-3, 1.0e-2]}"
    file = write(tmp_path, "count: 6, sampler: random, seed: 3", values=values)
    # the first task dies while it trains; the second one draws a copy and then the other value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.sweep.test_search_array.FAKE", ("/bin/false",))
        assert run_task(file, 0) == 1
        machine = {"host": "far", "boot_id": "x", "pid": 1}
        (tmp_path / "runs" / MACHINES / "slurm-7-0.json").write_text(json.dumps(machine))
    assert run_task(file, 1) == 0
    states = [trial.state for trial in trials_of(file) if "same_as" in trial.notes]
    assert states and set(states) == {"running"}
    assert run_task(file, 0) == 0 and {trial.state for trial in trials_of(file)} == {"complete"}
    codes = [run_task(file, number) for number in range(6)]
    trials = trials_of(file)
    assert codes == [0] * 6 and {trial.state for trial in trials} == {"complete"}
    assert len(trials) == 6 and len({trial.notes["run"] for trial in trials}) == 2


@pytest.mark.parametrize(
    ("edited", "before", "after", "said"),
    [
        ("base.yaml", "device: cpu\n", "training: {seq_len: 128}\n", "recipe content"),
        ("edited_plugin.py", "SCALE = 2", "SCALE = 3", "recipe content"),
        ("sweep.yaml", "recipe: own.yaml", "recipe: other.yaml", "recipe"),
        ("sweep.yaml", "\nsearch:", "\nfilters: [optimizer.lr < 0.1]\nsearch:", "filters"),
        ("sweep.yaml", "1.0e-5, 1.0e-1", "1.0e-5, 1.0e-2", "values"),
        ("sweep.yaml", "\nsearch:", "\noverrides: [debug.seed=3]\nsearch:", "overrides"),
    ],
    ids=["recipe", "plug-in", "recipe-file", "filters", "values", "overrides"],
)
def test_a_task_trains_nothing_after_an_edit(
    edited: str,
    before: str,
    after: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("titanrun.recipe.plugin_files.is_trusted", lambda code, environment: True)
    file, base = write_with_recipe(tmp_path, "count: 2, sampler: random")
    (tmp_path / "edited_plugin.py").write_text("PLUGIN_API = 1\nSCALE = 2\n")
    if edited == "edited_plugin.py":
        base.write_text(base.read_text() + "plugins: [./edited_plugin.py]\n")
    (tmp_path / "other.yaml").write_text((tmp_path / "own.yaml").read_text())
    assert run_task(file, 0) == 0
    text = (tmp_path / edited).read_text()
    assert before in text
    (tmp_path / edited).write_text(text.replace(before, after))
    with pytest.raises(ProblemsFound, match=f"was begun with other {said}$"):
        run_task(file, 1)


def test_srun_starts_the_run_and_gets_the_signal_that_it_passes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    file = write(tmp_path, "count: 1")
    planner = build_planner(read_sweep(file), [], {})
    case = planner.try_point(planner.space.build_point({"optimizer.lr": 0.002}))
    run = planner.build_run(case, {})
    starter = SrunStarter(planner.sweep, get_environment(), allows_code=True)
    command = starter.build_command(run)
    assert command[0] == str(tmp_path / "bin" / "srun")
    assert list(command[-4:]) == ["titanrun", "resume", str(run.folder), "--trust"]
    assert "lr: 0.002" in (run.folder / "resolved.yaml").read_text()
    assert starter.get_stop_signal(signal.SIGTERM) == signal.SIGUSR1
    assert LocalStarter("x", 1).get_stop_signal(signal.SIGTERM) == signal.SIGTERM


def test_a_launcher_of_a_plug_in_has_no_arrays() -> None:
    launch = SimpleNamespace(name="my_cluster")
    run = SimpleNamespace(resolved=SimpleNamespace(run=SimpleNamespace(launch=launch)))
    with pytest.raises(ProblemsFound, match="launches on 'my_cluster', but --launch submits"):
        get_array_config(SimpleNamespace(), [run])  # type: ignore[arg-type,list-item]
