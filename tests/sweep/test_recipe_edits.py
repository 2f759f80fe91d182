"""Edits of a recipe and of a sweep file between two starts of a sweep, and while it trains."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from tests.sweep.fake_sweep import FAKE
from titanrun.cli import sweep as sweep_command
from titanrun.config.exit_codes import EXIT_USAGE
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_recipe_files
from titanrun.sweep.sweep_file import Sweep
from titanrun.sweep.sweep_runner import LocalStarter, SweepRunner
from titanrun.sweep.validate_points import PlannedRun

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
SLURM = "launch: {name: slurm, time_limit: 2h}"
KUBERNETES = "launch: {name: kubernetes, image: x, volumes: [{claim: runs, path: VOLUME}]}"


def write(folder: Path, *, base: str = "", sweep: str = "grid: {debug.seed: [1, 2]}") -> str:
    (folder / "base.yaml").write_text(f"extends: [{RECIPE}]\n{base}\n")
    (folder / "own.yaml").write_text("version: 1\nextends: [base.yaml]\n")
    file = folder / "sweep.yaml"
    file.write_text(f"version: 1\nrecipe: own.yaml\nfolder: {folder / 'runs'}\n{sweep}\n")
    return str(file)


def train(sweep: Sweep, runs: Sequence[PlannedRun], *_: object) -> int:
    """Leave what a run leaves that has trained a step."""
    for run in runs:
        resolved = resolve_recipe(sweep.recipe, run.arguments, environment={})
        directory = select_run_directory(resolved, datetime.now().astimezone())
        write_recipe_files(directory, resolved, ["titanrun", "sweep"])
        (run.folder / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    return 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a sweep, whose runs only seem to train."""
    monkeypatch.setattr(sweep_command, "train_sweep", train)
    return tmp_path


@pytest.mark.parametrize(
    ("edit", "arguments", "said"),
    [
        ({"base": "training: {seq_len: 128}"}, [], "training.seq_len 256 -> 128"),
        ({"base": "lr_scheduler: {warmup_steps: 7}"}, [], "lr_scheduler.warmup_steps 8 -> 7"),
        ({}, ["training.steps=9"], "training.steps 80 -> 9"),
        (
            {"sweep": "overrides: [training.steps=9]\ngrid: {debug.seed: [1, 2]}"},
            [],
            "training.steps 80 -> 9",
        ),
        # the names tell only what varies
        (
            {"sweep": "grid: {debug.seed: [1, 2], optimizer.lr: [0.5]}"},
            [],
            "optimizer.lr 0.002 -> 0.5",
        ),
        (
            {"sweep": "metric: validation/loss\ngrid: {debug.seed: [1, 2]}"},
            ["validation.steps=3"],
            "validation.steps 8 -> 3",
        ),
    ],
    ids=["recipe", "schedule", "command-line", "overrides", "values", "validation"],
)
@pytest.mark.parametrize("place", ["here", "slurm", "kubernetes"])
def test_runs_of_another_recipe_are_a_problem(
    edit: dict[str, str], arguments: list[str], said: str, place: str, folder: Path
) -> None:
    launch = {"here": [], "slurm": [SLURM], "kubernetes": [KUBERNETES]}[place]
    where = [line.replace("VOLUME", str(folder)).replace(": ", "=", 1) for line in launch]
    assert sweep_command.run([write(folder), *where]) == 0
    flags = ["--launch"] if launch else []
    with pytest.raises(ProblemsFound) as found:
        sweep_command.run([write(folder, **edit), *where, *arguments, *flags])
    (problem,) = found.value.problems
    assert problem.code == "conflict"
    assert f"2 runs in '{folder / 'runs'}' trained another recipe" in problem.message
    assert said in "; ".join(item.message for item in problem.related)
    # the results so far can be seen
    assert sweep_command.run([write(folder, **edit), *where, *arguments, "--table"]) == 0


def test_what_does_not_change_results_may_be_edited(folder: Path) -> None:
    assert sweep_command.run([write(folder)]) == 0
    notes = "description: again\nmetrics: {log_freq: 5}\nvalidation: {steps: 3}"
    for edit in (
        {"base": notes},
        {"sweep": "grid: {debug.seed: [1, 2, 3]}"},
        {"sweep": "filters: [debug.seed < 3]\ngrid: {debug.seed: [1, 2, 3]}"},
        {"sweep": "max_runs: 1\ngrid: {debug.seed: [1, 2]}"},
    ):
        assert sweep_command.run([write(folder, **edit)]) == 0, edit
    allowed = {"base": "training: {seq_len: 128}\ncheckpoint: {allow_change: [training.seq_len]}"}
    assert sweep_command.run([write(folder, **allowed)]) == 0


def test_a_run_that_never_trained_may_change(folder: Path) -> None:
    assert sweep_command.run([write(folder)]) == 0
    for metrics in (folder / "runs").glob("*/metrics.jsonl"):
        metrics.unlink()
    assert sweep_command.run([write(folder, base="training: {seq_len: 128}")]) == 0


def build_fake_command(starter: LocalStarter, run: PlannedRun) -> list[str]:
    return [*FAKE, starter.recipe, "optimizer.lr=0.001", *run.arguments]


def test_a_recipe_that_is_edited_while_a_sweep_trains_starts_no_more_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweep_command, "check_run_builds", lambda run: None)
    monkeypatch.setattr(LocalStarter, "build_command", build_fake_command)
    start = SweepRunner._start
    started = []

    def start_and_edit(runner: SweepRunner, run: PlannedRun) -> None:
        start(runner, run)
        started.append(run.name)
        # a name decides nothing, a length does
        write(tmp_path, base="description: x" if len(started) == 1 else "training: {seq_len: 128}")

    monkeypatch.setattr(SweepRunner, "_start", start_and_edit)
    file = write(tmp_path, sweep="grid: {debug.seed: [1, 2, 3]}")
    assert sweep_command.run([file]) == EXIT_USAGE
    assert started == ["seed=1", "seed=2"]
    said = "the recipe was edited since the sweep began: no more runs start"
    assert capsys.readouterr().err.count(said) == 1
