"""Sweeps on Kubernetes before anything is submitted: what fits a Job each, and what does not."""

import signal
from pathlib import Path

import pytest

from titanrun.cli import launch, sweep
from titanrun.config.problems import ProblemsFound
from titanrun.sweep.job_runs import JobStarter
from titanrun.sweep.search_points import build_planner
from titanrun.sweep.sweep_file import read_sweep

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
SEARCH = "search: {count: 2, values: {optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}}}\n"
GRID = "grid: {optimizer.lr: [1.0e-3, 2.0e-3]}\n"


def write(
    folder: Path, values: str, *, runs: str, volume: str, recipe: str = "", more: str = ""
) -> Path:
    launch = f"{{name: kubernetes, image: x, {more}volumes: [{{claim: runs, path: {volume}}}]}}"
    (folder / "own.yaml").write_text(
        f"version: 1\nextends: [{RECIPE}]\ndevice: cpu\ndump_folder: {volume}/x\n"
        f"launch: {launch}\n{recipe}"
    )
    file = folder / "sweep.yaml"
    file.write_text(f"version: 1\nrecipe: own.yaml\nfolder: {runs}\n{values}")
    return file


@pytest.mark.parametrize("values", [GRID, SEARCH])
def test_the_folder_of_a_sweep_lies_in_a_volume_that_this_machine_sees(
    values: str, tmp_path: Path
) -> None:
    file = write(tmp_path, values, runs="runs/s", volume="/runs")
    for option in ("--launch", "--dry-run"):
        with pytest.raises(ProblemsFound, match="'runs/s' is in no volume of the launch section"):
            sweep.run([str(file), option])
    nowhere = tmp_path / "nowhere"
    file = write(tmp_path, values, runs=f"{nowhere}/s", volume=str(nowhere))
    with pytest.raises(ProblemsFound, match=f"the volume '{nowhere}' is no folder of this machine"):
        sweep.run([str(file), "--launch"])
    assert not nowhere.exists()


def test_a_dry_run_shows_jobs_and_needs_neither_volume_nor_kubectl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for values, count in ((GRID, 2), (SEARCH, 1)):
        file = write(tmp_path, values, runs="/nowhere/s", volume="/nowhere")
        assert sweep.run([str(file), "--dry-run"]) == 0
        said = capsys.readouterr()
        assert said.out.count('kind: "Job"') == count
        assert "/nowhere/s/lr=" in said.out
        assert ("this is the Job of one point" in said.err) == (values == SEARCH)


@pytest.mark.parametrize(
    ("values", "recipe", "more", "message"),
    [
        (
            GRID,
            "fault_tolerance: {enable: true, group_size: 2}\ncheckpoint: {enable: true}\n",
            "",
            "a sweep does not start replica groups",
        ),
        (
            f"{GRID}early_stopping: {{name: median, first_step: 5}}\n",
            "",
            "queue: team, ",
            "early_stopping is not supported with launch.queue",
        ),
    ],
)
def test_what_a_job_for_each_run_cannot_do_is_said_before_anything_is_submitted(
    values: str, recipe: str, more: str, message: str, tmp_path: Path
) -> None:
    runs = f"{tmp_path}/runs"
    file = write(tmp_path, values, runs=runs, volume=str(tmp_path), recipe=recipe, more=more)
    with pytest.raises(ProblemsFound, match=message):
        sweep.run([str(file), "--launch"])


def test_a_run_is_started_by_a_command_that_ends_with_its_job(tmp_path: Path) -> None:
    file = write(tmp_path, SEARCH, runs=f"{tmp_path}/runs", volume=str(tmp_path))
    planner = build_planner(read_sweep(file), [], {})
    case = planner.try_point(planner.space.build_point({"optimizer.lr": 0.002}))
    run = planner.build_run(case, {})
    starter = JobStarter(planner.sweep.recipe, allows_code=True)
    words = list(starter.build_command(run))[3:]
    assert words[0] == "launch" and words[-2:] == ["--attached", "--trust"]
    assert f"dump_folder={tmp_path}/runs/lr=0.002" in words
    # pods get no other signal than SIGTERM
    assert starter.get_stop_signal(signal.SIGINT) == signal.SIGTERM


def test_attached_is_for_one_job_that_is_followed(tmp_path: Path) -> None:
    write(tmp_path, GRID, runs="/runs/s", volume="/runs")
    recipe = str(tmp_path / "own.yaml")
    for option in ("--dry-run", "--no-follow"):
        with pytest.raises(ProblemsFound, match=f"--attached follows the job, and {option}"):
            launch.run([recipe, "--attached", option])
    with pytest.raises(ProblemsFound, match="--attached is not supported by launch: local"):
        launch.run([recipe, "launch=local", "--attached"])
    sky = "launch={name: skypilot, volumes: [{volume: runs, path: /runs}]}"
    with pytest.raises(ProblemsFound, match="is for a run that is one Job of Kubernetes"):
        launch.run([recipe, sky, "--attached"])
