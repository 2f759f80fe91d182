"""Code that comes with weights runs where the command line says so, and nowhere else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.config.trust import TRUST_VARIABLE
from titanrun.models.transformers.config import TransformersConfig
from titanrun.models.transformers.remote_code import find_remote_class
from titanrun.recipe.resolving.resolve import resolve_recipe

HERE = Path(__file__).parent / "with_code"
RECIPE = "recipes/qwen3_debug.yaml"
SHORT = ("training.steps=1", "lr_scheduler.warmup_steps=0", "training.seq_len=64", "device=cpu")


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(HERE, tmp_path / "others"))


def titanrun(tmp_path, *arguments, **variables):
    # transformers copies the code to where it keeps such modules
    environment = {
        **os.environ,
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        **variables,
    }
    command = [sys.executable, "-m", "titanrun", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def model(folder):
    return f"model={{name: transformers, path: {folder}}}"


def test_only_the_word_of_the_command_line_lets_it_run(folder, monkeypatch):
    config = TransformersConfig(path=str(folder))
    written = json.loads((folder / "config.json").read_text())
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    assert find_remote_class(config, written, "AutoConfig") is None
    monkeypatch.setenv(TRUST_VARIABLE, "model code")
    with pytest.raises(ProblemsFound, match="only code in the folder itself can run"):
        find_remote_class(config, {"auto_map": {"AutoConfig": "a/b--c.D"}}, "AutoConfig")


@pytest.mark.slow
def test_without_the_flag_nothing_of_it_runs_whatever_the_environment_says(tmp_path, folder):
    (folder / "configuration.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for command in (["validate", "--level", "build"], ["plan"]):
        done = titanrun(tmp_path, *command, RECIPE, model(folder), *SHORT, TITANRUN_TRUST="all")
        assert done.returncode == 2, done.stderr
        assert "has no architecture 'of_others'" in done.stderr
        assert "review that code, then run the command with --trust" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_with_the_flag_it_trains_and_run_json_says_so(tmp_path, folder):
    run = tmp_path / "run"
    asked = (model(folder), *SHORT, "checkpoint.enable=true", f"dump_folder={run}")
    done = titanrun(tmp_path, "train", RECIPE, "--trust", *asked)
    assert done.returncode == 0, done.stderr
    (start,) = json.loads((run / "run.json").read_text())["starts"]
    assert start["trust_remote_code"] is True
    assert any("modeling.py" in entry.get("each", {}) for entry in start["inputs"])
    assert "trust" not in (run / "resolved.yaml").read_text()
    # remembered, until the code changes
    assert titanrun(tmp_path, "resume", str(run), "training.steps=2").returncode == 0
    with (folder / "modeling.py").open("a") as file:
        file.write("# changed\n")
    again = titanrun(tmp_path, "resume", str(run), "training.steps=3")
    assert again.returncode == 2 and "--trust" in again.stderr
    old = titanrun(tmp_path, "resume", "--trust-remote-code", str(run), "training.steps=3")
    assert old.returncode == 0, old.stderr
    assert old.stderr.count("--trust-remote-code is now --trust") == 1


@pytest.mark.slow
def test_the_class_that_comes_with_the_weights_is_the_one_that_computes(tmp_path, folder):
    program = (
        "import sys;"
        "from titanrun.launch.launch_env import set_trust; set_trust('all');"
        "from titanrun.models.transformers.config import TransformersConfig as C; from "
        "titanrun.models.shared.spec.flavors import resolve_model_sizes;"
        "from titanrun.models.transformers.architecture import build_transformers_skeleton;"
        "print(type(build_transformers_skeleton(C.model_validate(resolve_model_sizes("
        "C.model_validate({'path': sys.argv[1]}))))).__name__)"
    )
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "OthersForCausalLM", done.stderr
    (folder / "configuration.py").write_text("import nothing_of_that_name\n")
    shutil.rmtree(tmp_path / "modules")
    broken = titanrun(tmp_path, "plan", "--trust", RECIPE, model(folder))
    assert broken.returncode == 2 and "cannot import the code" in broken.stderr, broken.stderr
    written = json.loads((HERE / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**written, "auto_map": {"AutoConfig": "a/b--c.D"}})
    )
    elsewhere = titanrun(tmp_path, "plan", "--trust", RECIPE, model(folder))
    assert "only code in the folder itself can run" in elsewhere.stderr


@pytest.mark.parametrize("place", ["trust_remote_code", "model.trust_remote_code"])
def test_a_recipe_that_trusts_code_is_told_of_the_flag(place):
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(RECIPE, [f"{place}=true"], environment={})
    (problem,) = found.value.problems
    assert problem.code == "unknown-key"
    assert problem.hint is not None and problem.hint.endswith("start with --trust")
