"""A plug-in in a file beside the recipe runs only once the user has allowed it, from a copy."""

import inspect
import json
import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from titanrun.cli import main
from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config import registry
from titanrun.config.problems import ProblemsFound
from titanrun.config.source_streams import withdraw_text
from titanrun.config.trust import TRUST_VARIABLE
from titanrun.recipe.editing.examiner import Examiner
from titanrun.recipe.plugin_files import PLACES_VARIABLE
from titanrun.recipe.plugins import activate_plugins
from titanrun.recipe.resolving.resolve import resolve_recipe

PLUGIN = '''"""Steps against the sign of the gradient (https://arxiv.org/abs/1802.04434)."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from titanrun.components.optimizers.config import OptimizerConfig
from titanrun.config.fields import numerics
from titanrun.config.types import PositiveFloat

PLUGIN_API = 1
Path("ran").write_text(__file__)


class SignConfig(OptimizerConfig):
    """Steps of one size."""

    name: Literal["sign"] = numerics("sign")
    builds: ClassVar = "mine:build_sign"
    lr: PositiveFloat = numerics(1e-3)
    """Size of a step."""


def build_sign(config: SignConfig, *, parameters: Any) -> Any:
    import torch

    class Sign(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    weight -= group["lr"] * weight.grad.sign()

    return Sign([weight for _, weight in parameters], {"lr": config.lr})
'''
RECIPE = """version: 1
plugins: [./mine.py]
device: cpu
model: {name: llama3, flavor: debugmodel, dim: 16, n_layers: 1, n_heads: 2, n_kv_heads: 2}
tokenizer: tiny
optimizer: {name: sign, lr: 1.0e-3}
training: {dataset: tiny, seq_len: 16, local_batch_size: 1, steps: 2,
           mixed_precision_param: float32}
checkpoint: {enable: true, interval: 2}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory with a recipe and its plug-in; nothing is allowed yet."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.py").write_text(PLUGIN)
    (tmp_path / "recipes" / "mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (TRUST_VARIABLE, PLACES_VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield tmp_path
    activate_plugins([])


def titanrun(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "titanrun", *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "200", **variables},
    )


def problems_of(file: str = "recipes/mine.yaml") -> list[str]:
    try:
        resolve_recipe(file, environment={})
    except ProblemsFound as found:
        return [problem.message for problem in found.problems]
    return []


def test_nothing_that_reads_a_recipe_runs_a_file_without_consent(place: Path) -> None:
    refusal = "plug-in './mine.py' has not been allowed: it would run its code here"
    assert problems_of() == [refusal]
    found = Examiner(dict(os.environ))
    document = found.open("recipes/mine.yaml", RECIPE)
    found.examine(document)
    withdraw_text("recipes/mine.yaml")
    assert [problem.message for problem in document.problems] == [refusal]
    for words in (["validate"], ["show"], ["plan"], ["explain", "optimizer:sign"], ["train"]):
        files = ["--plugins", "recipes/mine.py"] if words[0] == "explain" else ["recipes/mine.yaml"]
        assert main.run([*words, *files]) == 2
    assert not (place / "ran").exists()


def test_the_message_says_where_and_what_to_do(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["validate", "recipes/mine.yaml"]) == 2
    told = capsys.readouterr().err
    assert "recipes/mine.yaml:2:11" in told and "--trust" in told
    assert main.run(["validate", "--trust", "recipes/mine.yaml"]) == 0
    os.environ.pop(TRUST_VARIABLE, None)
    assert main.run(["validate", "recipes/mine.yaml"]) == 0
    assert "runs code, allowed: plugins[0]: plug-in mine.py (" in capsys.readouterr().err


def test_consent_is_for_the_content_wherever_the_file_lies(place: Path) -> None:
    assert main.run(["validate", "--trust", "recipes/mine.yaml"]) == 0
    os.environ.pop(TRUST_VARIABLE, None)
    (place / "elsewhere").mkdir()
    for name in ("mine.py", "mine.yaml"):
        (place / "elsewhere" / name).write_bytes((place / "recipes" / name).read_bytes())
    assert problems_of("elsewhere/mine.yaml") == []
    (place / "recipes" / "mine.py").write_text(PLUGIN.replace("sign()", "sgn()"))
    assert problems_of() != [] and problems_of("elsewhere/mine.yaml") == []


def test_a_changed_file_that_is_allowed_takes_the_place_of_the_former_one(place: Path) -> None:
    os.environ[TRUST_VARIABLE] = "all"
    assert problems_of() == []
    (place / "recipes" / "mine.py").write_text(PLUGIN.replace('"sign"', '"signs"'))
    assert problems_of() == ["unknown optimizer 'sign'"]
    (place / "recipes" / "mine.py").write_text(PLUGIN)
    assert problems_of() == []


@pytest.mark.parametrize("change", ["other content", "no consent", "no file", "no entry"])
def test_what_a_file_defined_is_hidden_once_it_may_not_run(change: str, place: Path) -> None:
    """A process such as the language server reads the recipe again and again."""
    assert main.run(["validate", "--trust", "recipes/mine.yaml"]) == 0
    os.environ.pop(TRUST_VARIABLE, None)
    assert problems_of() == []
    file, recipe = place / "recipes" / "mine.py", place / "recipes" / "mine.yaml"
    if change == "other content":
        file.write_text(PLUGIN + "\n")
    elif change == "no consent":
        rmtree(place / "state")
    elif change == "no file":
        file.unlink()
    else:
        recipe.write_text(RECIPE.replace("plugins: [./mine.py]\n", ""))
    assert problems_of() != []
    assert "sign" not in registry.get_choice_names(OptimizerConfig)
    # what was allowed before is back with it
    file.write_text(PLUGIN)
    recipe.write_text(RECIPE)
    if change != "no consent":
        assert problems_of() == []
        assert "sign" in registry.get_choice_names(OptimizerConfig)


def test_a_compiled_file_beside_it_is_not_what_runs(place: Path) -> None:
    import py_compile

    os.environ[TRUST_VARIABLE] = "all"
    file = place / "recipes" / "mine.py"
    file.write_text("raise SystemExit(9)  " + "#" * (len(PLUGIN) - 22) + "\n")
    os.utime(file, (1, 1))
    py_compile.compile(str(file))
    file.write_text(PLUGIN)
    os.utime(file, (1, 1))
    assert problems_of() == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mine.py", "import nowhere_at_all\n", "ModuleNotFoundError"),
        ("mine.py", "def\n", "SyntaxError"),
        ("mine.py", "", "does not state which version of the plug-in API"),
        ("json.py", PLUGIN, "has the name of an installed module"),
        ("my-plugin.py", PLUGIN, "is no name of a Python module"),
        (None, "", "plug-in file not found: './mine.py'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    name: str | None, text: str, message: str, place: Path
) -> None:
    os.environ[TRUST_VARIABLE] = "all"
    (place / "recipes" / "mine.py").unlink()
    if name is not None:
        (place / "recipes" / name).write_text(text)
        (place / "recipes" / "mine.yaml").write_text(RECIPE.replace("mine.py", name))
    (problem,) = problems_of()
    assert message in problem


@pytest.mark.slow
def test_a_run_keeps_a_copy_that_resume_chat_and_bundles_use(place: Path) -> None:
    train = ("train", "recipes/mine.yaml", "dump_folder=run")
    assert titanrun(*train).returncode == 2 and not (place / "run").exists()
    done = titanrun(*train, "--trust")
    assert done.returncode == 0, done.stderr
    assert (place / "run" / "plugins" / "mine.py").read_text() == PLUGIN
    # workers run the copy
    assert (place / "ran").read_text() == str(place / "run" / "plugins" / "mine.py")
    rmtree(place / "recipes")
    for words in (
        ("bundle", "run", "-o", "run.zip"),
        ("reproduce", "run.zip", "--out", "again"),
        ("resume", "run", "training.steps=4"),
        ("generate", "run", "--prompt", "a", "--max-new-tokens", "1"),
        ("validate", "run/checkpoint/step-4/resolved.yaml"),
        ("runs", "ls", "."),
    ):
        done = titanrun(*words)
        assert done.returncode == 0, done.stderr
    (recorded,) = json.loads((place / "run" / "run.json").read_text())["starts"][0]["environment"][
        "plugins"
    ]
    assert recorded["name"] == "./mine.py" and list(recorded["files"]) == ["mine.py"]
    assert "plugins/mine.py" in zipfile.ZipFile("run.zip").namelist()
    # another user, to whom nobody has said what the file is
    refused = titanrun(
        "reproduce", "run.zip", "--out", "theirs", XDG_STATE_HOME=str(place / "theirs-state")
    )
    assert refused.returncode == 2 and "has not been allowed" in refused.stderr
    assert not (place / "theirs").exists()
    # and a copy that was changed since
    copy = place / "run" / "plugins" / "mine.py"
    copy.write_text(PLUGIN.replace("1e-3", "1e-2"))
    refused = titanrun("resume", "run", "training.steps=6")
    assert refused.returncode == 2 and "has not been allowed" in refused.stderr


@pytest.mark.slow
def test_a_run_does_not_go_on_with_another_content(place: Path) -> None:
    train = ("train", "recipes/mine.yaml", "dump_folder=run", "--trust")
    assert titanrun(*train).returncode == 0
    (place / "recipes" / "mine.py").write_text(PLUGIN + "# changed\n")
    refused = titanrun(*train, "training.steps=4")
    assert refused.returncode == 2
    assert "holds a run with another content of plug-in './mine.py'" in refused.stderr
    words = "run/checkpoint/step-2 dump_folder=run-2 'plugins=[recipes/mine.py]' --trust"
    assert f"titanrun resume {words}" in refused.stderr
    assert titanrun("resume", *shlex.split(words), "training.steps=4").returncode == 0
    assert len((place / "run-2" / "metrics.jsonl").read_text().splitlines()) >= 1
    assert (place / "run" / "plugins" / "mine.py").read_text() == PLUGIN


def test_a_run_without_a_step_goes_on_with_the_corrected_file(place: Path) -> None:
    file = place / "recipes" / "mine.py"
    train = ("train", "--trust", "recipes/mine.yaml", "dump_folder=run")
    file.write_text(PLUGIN.replace("return Sign(", "Sign("))
    assert titanrun(*train).returncode == 2
    file.write_text(PLUGIN)
    done = titanrun(*train)
    assert done.returncode == 0, done.stderr
    assert (place / "run" / "plugins" / "mine.py").read_text() == PLUGIN


def test_an_error_of_its_code_names_the_line(place: Path) -> None:
    broken = PLUGIN.replace("weight.grad.sign()", "weight.gard.sign()")
    (place / "recipes" / "mine.py").write_text(broken)
    line = 1 + broken[: broken.index("weight.gard")].count("\n")
    ended = titanrun("train", "--trust", "recipes/mine.yaml", "dump_folder=run")
    assert ended.returncode == 70
    assert "error[internal]: AttributeError: 'Parameter' object has no attribute" in ended.stderr
    told = f"  = help: raised in mine.py, line {line} (traceback: run/logs/internal-error.txt)"
    assert told in ended.stderr


def test_an_error_in_a_command_is_not_called_a_bug_of_titanrun(place: Path) -> None:
    faulty_rule = """
from titanrun.recipe.rules.registry import rule


@rule("mine")
def check(run: Any) -> Any:
    yield 1 / 0
"""
    broken = PLUGIN + faulty_rule
    (place / "recipes" / "mine.py").write_text(broken)
    line = 1 + broken[: broken.index("1 / 0")].count("\n")
    ended = titanrun("validate", "--trust", "recipes/mine.yaml")
    assert ended.returncode == 70
    assert f"help: raised in mine.py, line {line}; the report is in" in ended.stderr


def test_a_builder_that_returns_nothing_is_a_problem_of_the_plug_in(place: Path) -> None:
    broken = PLUGIN.replace("return Sign(", "Sign(")
    (place / "recipes" / "mine.py").write_text(broken)
    line = 1 + broken[: broken.index("def build_sign")].count("\n")
    ended = titanrun("train", "--trust", "recipes/mine.yaml", "dump_folder=run")
    assert ended.returncode == 2
    assert "error[usage]: optimizer 'sign': it returned None" in ended.stderr
    assert f"--> mine.py:{line}:5" in ended.stderr
    assert "help: return a torch.optim.Optimizer" in ended.stderr


def test_commands_without_a_recipe_find_a_file_in_the_working_directory(place: Path) -> None:
    words = ["explain", "optimizer:sign", "--plugins", "./mine.py"]
    missing = titanrun(*words)
    assert missing.returncode == 2 and "file not found: './mine.py'" in missing.stderr
    assert "relative to the working directory" in missing.stderr
    (place / "mine.py").write_text(PLUGIN)
    refused = titanrun(*words)
    assert refused.returncode == 2 and "run the command with --trust" in refused.stderr
    assert not (place / "ran").exists()
    assert "Steps of one size" in titanrun(*words, "--trust").stdout
    # consent is remembered
    assert "sign " in titanrun("ls", "optimizers", "--plugins", "mine.py").stdout


def test_a_run_builds_with_its_own_file_although_its_start_has_another_one(place: Path) -> None:
    first = ("train", "--trust", "recipes/mine.yaml", "dump_folder=first")
    assert titanrun(*first).returncode == 0
    stepping = "            Path('stepped').write_text(__file__)\n            for group in"
    changed = PLUGIN.replace("            for group in", stepping)
    assert changed != PLUGIN
    (place / "recipes" / "mine.py").write_text(changed)
    start = "checkpoint.initial_load_path=first"
    done = titanrun("train", "--trust", "recipes/mine.yaml", "dump_folder=second", start)
    assert done.returncode == 0, done.stderr
    assert (place / "stepped").read_text() == str(place / "second" / "plugins" / "mine.py")


def test_a_config_builds_with_the_file_that_it_is_from(place: Path) -> None:
    assert main.run(["validate", "--trust", "recipes/mine.yaml"]) == 0
    run = resolve_recipe("recipes/mine.yaml", environment={}).run
    (place / "other").mkdir()
    (place / "other" / "mine.py").write_text(PLUGIN.replace("-= group", "+= group"))
    (place / "other" / "mine.yaml").write_text(RECIPE)
    assert main.run(["validate", "--trust", "other/mine.yaml"]) == 0
    other = resolve_recipe("other/mine.yaml", environment={}).run
    built = [one.optimizer.load_builder() for one in (run, other)]
    files = [inspect.unwrap(builder).__code__.co_filename for builder in built]
    assert files == [str(place / folder / "mine.py") for folder in ("recipes", "other")]
