"""Files of other machines that appear late here, or never, as on a network file system."""

import shutil
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from tests.sweep.fake_sweep import FAKE
from tests.sweep.test_search import loss_at, study_of, trials_of, write
from titanrun.cli.sweep_search import train_search
from titanrun.cli.sweep_search_array import train_array_task
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.rundir import late_files
from titanrun.sweep.run_sources import FixedRuns
from titanrun.sweep.search_array import SrunStarter
from titanrun.sweep.search_points import build_planner
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.sweep_runner import LocalStarter, SweepRunner
from titanrun.sweep.validate_points import validate_points

# trains, but a file of the run appears after its exit code
LATE = """
folder=; for word in "$@"; do case $word in dump_folder=*) folder=${word#dump_folder=};; esac; done
%(train)s "$@" || exit
mv "$folder/%(name)s" "$folder/hidden"
%(shows)s
[ %(seconds)s = never ] || { sleep %(seconds)s; mv "$folder/hidden" "$folder/%(name)s"; } &
"""


# the curve ends before the last step
SHOWS_BEGINNING = 'head -n 1 "$folder/hidden" > "$folder/metrics.jsonl"'


def write_late_trainer(
    folder: Path, name: str, seconds: object, *, shows: str = ""
) -> tuple[str, ...]:
    script = folder / "late.sh"
    values = {"train": " ".join(FAKE), "name": name, "seconds": seconds, "shows": shows}
    script.write_text(LATE % values)
    return ("/bin/sh", str(script))


def search(file: Path, command: tuple[str, ...]) -> int:
    planner = build_planner(read_sweep(file), [], {})
    planner.sweep.folder.mkdir(parents=True, exist_ok=True)
    starter = LocalStarter(planner.sweep.recipe, 1, command)
    return train_search(planner, [], Namespace(quiet=False), starter=starter)


def sweep(file: Path, command: tuple[str, ...]) -> tuple[int, list[str]]:
    read, lines = read_sweep(file), list[str]()
    runs, _ = validate_points(read, [], {})
    runner = SweepRunner(
        config=read.config,
        folder=read.folder,
        source=FixedRuns(
            folder=read.folder, runs=runs, print_line=lines.append, is_edited=lambda run: False
        ),
        starter=LocalStarter(read.recipe, 1, command),
        print_line=lines.append,
    )
    return runner.run(), lines


def write_grid(folder: Path) -> Path:
    file = write(folder, "count: 1")
    text = file.read_text().partition("search:")[0]
    file.write_text(f"{text}grid: {{optimizer.lr: [1.0e-3, 1.0e-2]}}\n")
    return file


@pytest.mark.parametrize(
    ("name", "shows"),
    [("status.json", ""), ("metrics.jsonl", ""), ("metrics.jsonl", SHOWS_BEGINNING)],
    ids=["status", "metrics", "last-steps"],
)
def test_the_end_of_a_trial_that_appears_late_is_waited_for(
    name: str, shows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "count: 2, sampler: random")
    assert search(file, write_late_trainer(tmp_path, name, 1, shows=shows)) == 0
    trials = trials_of(file)
    assert [trial.state for trial in trials] == ["complete"] * 2
    assert [trial.value for trial in trials] == pytest.approx(
        [loss_at(trial.notes["point"]) for trial in trials]
    )
    assert capsys.readouterr().err.count("waiting for the end of run") == 2


@pytest.mark.parametrize("name", ["status.json", "metrics.jsonl"])
def test_a_trial_whose_end_never_appears_stays_open_and_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_files, "LATE_SECONDS", 1.0)
    file = write(tmp_path, "count: 3, sampler: random")
    with pytest.raises(ProblemsFound) as found:
        search(file, write_late_trainer(tmp_path, name, "never"))
    (problem,) = found.value.problems
    assert problem.code == "file"
    (trial,) = trials_of(file)
    run = tmp_path / "runs" / trial.notes["run"]
    assert problem.message == f"the end of run '{run}' is not visible on this machine after 1 s"
    assert trial.state == "running"
    (run / "hidden").rename(run / name)
    assert search(file, FAKE) == 0
    trials = trials_of(file)
    assert [trial.state for trial in trials] == ["complete"] * 3
    assert trials[0].value == pytest.approx(loss_at(trials[0].notes["point"]))


def test_a_trial_that_another_machine_has_finished_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died before it recorded the end, of which a part is visible."""
    monkeypatch.setattr(late_files, "LATE_SECONDS", 1.0)
    file = write(tmp_path, "count: 1, sampler: random")
    with pytest.raises(ProblemsFound):
        search(file, write_late_trainer(tmp_path, "metrics.jsonl", "never"))
    with pytest.raises(ProblemsFound, match="the end of run"):
        search(file, ("/bin/false",))
    assert [trial.state for trial in trials_of(file)] == ["running"]


def test_the_runs_of_a_sweep_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_grid(tmp_path)
    code, lines = sweep(file, write_late_trainer(tmp_path, "status.json", 1))
    assert code == 0 and sum(line.startswith("waiting for") for line in lines) == 2
    monkeypatch.setattr(late_files, "LATE_SECONDS", 1.0)
    shutil.rmtree(tmp_path / "runs")
    with pytest.raises(ProblemsFound, match=r"the end of run .*lr=0\.001' is not visible"):
        sweep(file, write_late_trainer(tmp_path, "status.json", "never"))
    assert not (tmp_path / "runs" / "lr=0.01").exists()


def run_task(file: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    local = LocalStarter("", 1, FAKE)
    monkeypatch.setattr(SrunStarter, "build_command", lambda starter, run: local.build_command(run))
    options = Namespace(quiet=False, trust=False)
    return train_array_task(read_sweep(file), [], options)


def test_a_task_waits_for_the_journal_that_its_submission_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "count: 1, sampler: random")
    study_of(file)
    journal = tmp_path / "runs" / "optuna.journal"
    journal.rename(tmp_path / "hidden")
    late = threading.Timer(1, lambda: (tmp_path / "hidden").rename(journal))
    late.start()
    assert run_task(file, monkeypatch) == 0
    late.join()
    assert [trial.state for trial in trials_of(file)] == ["complete"]


def test_a_task_that_sees_no_journal_begins_no_search_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_files, "LATE_SECONDS", 1.0)
    file = write(tmp_path, "count: 1, sampler: random")
    with pytest.raises(ProblemsFound, match=r"the journal '.*optuna.journal' is not visible"):
        run_task(file, monkeypatch)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("seconds", [1, None], ids=["late", "never"])
def test_a_rank_of_a_job_waits_for_its_run(seconds: int | None, tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = (
        "import sys\n"
        "from titanrun.cli import resume\n"
        "from titanrun.cli.error_boundary import print_problems\n"
        "from titanrun.config.problems import ProblemsFound\n"
        "from titanrun.recipe.rundir import late_files\n"
        "late_files.LATE_SECONDS = 20 if sys.argv[2] == 'late' else 1\n"
        "resume.train.run = print\n"
        "try:\n"
        "    resume.run([sys.argv[1]])\n"
        "except ProblemsFound as found:\n"
        "    print_problems(found.problems)\n"
    )
    # rank 1: the recipe that rank 0 has written need only exist
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(run), "late" if seconds else "never"],
        env={"SLURM_STEP_NUM_TASKS": "2", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith(f"waiting for the run '{run}'")
    if seconds:
        run.mkdir()
        (run / "resolved.yaml").write_text("version: 1\n")
    said, errors = process.communicate(timeout=60)
    if seconds:
        assert f"{run}/resolved.yaml" in said
    else:
        assert f"error[file]: the run '{run}' is not visible on this machine after 1 s" in errors
