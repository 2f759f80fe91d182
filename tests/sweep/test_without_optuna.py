"""Sweeps where Optuna is not installed, and sweeps that do not use it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "llama3_debug.yaml"
ROOT = Path(__file__).parents[2]
HIDE = """
import sys
real = sys.meta_path[:]
class Filter:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "optuna":
            return None
        found = (finder.find_spec(name, path, target) for finder in real)
        return next((spec for spec in found if spec is not None), None)
sys.meta_path[:] = [Filter()]
"""
# each argument is the words of a command
COMMANDS = """
import sys
from titanrun.cli import sweep, validate
from titanrun.config.problems import ProblemsFound
for line in sys.argv[1:]:
    command, *words = line.split()
    try:
        {"sweep": sweep, "validate": validate}[command].run(words)
    except ProblemsFound as found:
        print(found.problems[0].hint)
"""
# trains with tests/sweep/fake_train.py
TRAIN = """
from pathlib import Path
from titanrun.sweep.run_sources import FixedRuns
from titanrun.sweep.sweep_file import read_sweep
from titanrun.sweep.sweep_runner import LocalStarter, SweepRunner
from titanrun.sweep.validate_points import validate_points
read = read_sweep(Path(sys.argv[1]))
runs, _ = validate_points(read, [], {})
source = FixedRuns(folder=read.folder, runs=runs, print_line=print,
                   is_edited=lambda run: False)
starter = LocalStarter(read.recipe, read.config.slots, (sys.executable, "-S", sys.argv[2]))
runner = SweepRunner(config=read.config, folder=read.folder, source=source, starter=starter,
                     print_line=print)
assert runner.run() == 0
"""
SEEN = """
print("imported:", [name for name in ("optuna", "torch", "numpy") if name in sys.modules])
"""
SECTIONS = {
    "grid": "grid: {optimizer.lr: [1.0e-3, 1.0e-2]}",
    "zip": "zip: {optimizer.lr: [1.0e-3, 1.0e-2], optimizer.weight_decay: [0.1, 0.2]}",
    "list": "list: [{optimizer.lr: 1.0e-3}, {optimizer.lr: 1.0e-2}]",
    "random": "random: {count: 2, values: {optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}}}",
}


def python(text: str, *words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", text, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def written(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "sweep.yaml"
    file.write_text(f"version: 1\nrecipe: {RECIPE}\nfolder: {folder / 'runs'}\n{text}\n")
    return file


@pytest.mark.parametrize("hide", [HIDE, ""], ids=["missing", "installed"])
def test_sweeps_without_search_import_no_optuna(hide: str, tmp_path: Path) -> None:
    stopping = "early_stopping: {name: median, first_step: 3}"
    files = [written(tmp_path / name, f"{stopping}\n{text}") for name, text in SECTIONS.items()]
    lists = [f"sweep {file} --list" for file in files]
    validations = [f"validate {file} --level environment" for file in files]
    said = python(hide + COMMANDS + SEEN, *lists, *validations)
    assert "imported: []" in said and "error" not in said
    assert said.count("optimizer.lr=") == 2 * len(SECTIONS), said


@pytest.mark.parametrize(
    "rule", ["{name: median, first_step: 3}", "{name: halving, first_step: 4, factor: 2}"]
)
def test_our_own_rules_train_and_stop_runs_without_optuna(rule: str, tmp_path: Path) -> None:
    rates = "1.0e-3, 1.1e-3, 1.2e-3, 1.0e-1"
    file = written(tmp_path, f"slots: 4\nearly_stopping: {rule}\ngrid: {{optimizer.lr: [{rates}]}}")
    trainer = str(Path(__file__).with_name("fake_train.py"))
    said = python(HIDE + TRAIN + SEEN, str(file), trainer, FAKE_STEPS="30", FAKE_SECONDS="0.2")
    assert "imported: []" in said and "lr=0.1: stopped early" in said, said
    assert "lr=0.001: finished" in said


def test_a_search_names_the_extra_where_optuna_is_missing(tmp_path: Path) -> None:
    search = "search: {count: 12, values: {optimizer.lr: {log_uniform: [1.0e-4, 1.0e-2]}}}"
    files = [
        written(tmp_path / "plain", search),
        written(tmp_path / "stopping", f"early_stopping: hyperband\n{search}"),
    ]
    commands = [
        line
        for file in files
        for line in (f"sweep {file} --list", f"validate {file} --level environment")
    ]
    said = python(HIDE + COMMANDS + SEEN, *commands)
    assert said.count('pip install "titanrun[search]"') == 4 and "imported: []" in said
    # the files themselves are valid, which needs no Optuna
    for hide in (HIDE, ""):
        said = python(hide + COMMANDS + SEEN, *(f"validate {file} --level rules" for file in files))
        assert "imported: []" in said and "error" not in said


def test_a_rule_of_optuna_without_search_is_a_mistake_of_the_file(tmp_path: Path) -> None:
    names = ("hyperband", "asha", "percentile", "patient, patience: 3")
    files = [
        written(tmp_path / name[:4], f"early_stopping: {{name: {name}}}\n{SECTIONS['grid']}")
        for name in names
    ]
    said = python(
        HIDE + COMMANDS + SEEN,
        *(f"sweep {file} --list" for file in files),
        *(f"validate {file} --level schema" for file in files),
    )
    hint = "use median or halving, or write the values in a section search"
    assert said.count(hint) == 8 and said.count("which a sweep without search does not use") == 4
    assert "imported: []" in said


@pytest.mark.parametrize(
    ("sampler", "module", "name"),
    [("cmaes", "cmaes", "cmaes"), ("gp", "scipy", "scipy"), ("tpe", "sklearn", "scikit-learn")],
)
def test_what_a_sampler_imports_is_asked_for_before_the_first_run(
    sampler: str, module: str, name: str, tmp_path: Path
) -> None:
    rates = ", ".join(f"optimizer.{key}: {{uniform: [0.1, 0.2]}}" for key in ("lr", "weight_decay"))
    file = written(tmp_path, f"search: {{sampler: {sampler}, count: 12, values: {{{rates}}}}}")
    show = "        print(found.problems[0].message)\n"
    said = python(HIDE.replace('"optuna"', f'"{module}"') + COMMANDS + show, f"sweep {file} --list")
    assert f"requires {name}, which is not installed" in said, said
