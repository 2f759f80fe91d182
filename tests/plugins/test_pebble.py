"""A package with a plug-in trains, and is part of the recipe language where a recipe lists it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from titanrun.cli.main import run_and_flush as main
from titanrun.config.problems import Problem, ProblemsFound
from titanrun.recipe.plugins import activate_plugins
from titanrun.recipe.resolving.resolve import resolve_recipe

PLUGINS = Path(__file__).parent
ROOT = PLUGINS.parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [(language, text) for language, text in BLOCK.findall(PAGE)]
RECIPE = (PLUGINS / "pebble.yaml").read_text(encoding="utf-8")
PLAIN = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntraining: {dataset: tiny, seq_len: "
    "64, steps: 10}\n"
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder of installed packages, pebble's beside it; whatever is in use at the end is put out
    of use."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(PLUGINS))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "plain.yaml").write_text(PLAIN, encoding="utf-8")
    yield site
    activate_plugins([])


def install(site: Path, name: str, text: str) -> None:
    """A plug-in of one module."""
    info = site / f"{name}-1.dist-info"
    info.mkdir()
    (site / f"{name}.py").write_text(text, encoding="utf-8")
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        f"[titanrun.plugins]\n{name} = {name}\n", encoding="utf-8"
    )


def test_every_part_trains_from_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(PLUGINS), str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    command = [
        sys.executable,
        "-m",
        "titanrun",
        "train",
        "recipe.yaml",
        "dump_folder=run",
        "metrics.log_freq=1",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    # steps: 60, and the kind until_target stops two steps after the loss is at 1
    assert [line["loss"] <= 1.0 for line in lines[-3:]] == [False, True, True]
    assert f"loss at 1.0 or below after step {len(lines)}" in done.stderr
    assert "freeze: 1 module (tok_embeddings)" in done.stderr
    (plugin,) = json.loads((tmp_path / "run" / "run.json").read_text())["starts"][0]["environment"][
        "plugins"
    ]
    assert (plugin["name"], plugin["package"], plugin["version"]) == ("pebble", "pebble", "1.0")
    assert set(plugin["files"]) == {
        path.relative_to(PLUGINS).as_posix() for path in (PLUGINS / "pebble").glob("*.py")
    }


def test_its_recipe_validates(installed: Path) -> None:
    assert main(["validate", "recipe.yaml", "--strict"]) == 0


def test_its_names_are_known_where_recipes_are_described(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in next(
        text for _, text in BLOCKS if text.startswith("titanrun ls plugins")
    ).splitlines():
        words = line.partition("   ")[0].partition(" > ")[0].split()
        assert main(words[1:]) == 0, line
    printed = capsys.readouterr().out
    assert "pebble  pebble 1.0" in printed
    assert re.search(r"lion +Lion.*\[pebble\]", printed)
    assert "number or null, above 0" in printed
    schema = json.loads(printed[printed.index("{\n") :])
    assert "target_loss" in schema["$defs"]["Training"]["properties"]
    kinds = schema["properties"]["kind"]["anyOf"][0]["enum"]
    assert kinds == ["pretrain", "sft", "eval", "rl", "until_target"]
    assert {"owner", "patience"} <= schema["properties"].keys()


def test_it_is_overridden_and_compared_as_what_ships_is(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = resolve_recipe(
        "recipe.yaml",
        ["training.target_loss=0.5", "optimizer.beta2=0.9", "patience.steps=3"],
        environment={},
    ).run
    assert (found.training.target_loss, found.patience.steps) == (0.5, 3)  # type: ignore[attr-defined]
    assert (
        "beta2: 0.9\n"
        in resolve_recipe("recipe.yaml", ["optimizer.beta2=0.9"], environment={}).text
    )
    assert main(["diff-config", "recipe.yaml", "plain.yaml"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"training\.target_loss +- 1\.0 .* numerics(, .*)?\n", printed)
    assert re.search(r"owner +- the tide group .* bookkeeping(, .*)?\n", printed)


def test_its_rule_is_asked_and_its_ranges_hold(installed: Path) -> None:
    warnings = resolve_recipe("recipe.yaml", ["kind=pretrain"], environment={}).warnings
    assert [warning.rule for warning in warnings] == ["target-needs-its-kind"]
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(
            "recipe.yaml",
            ["training.target_loss=-1", "patience.stepz=2", "kind=until_targe"],
            environment={},
        )
    told = {
        ".".join(map(str, problem.path)): problem.suggestion or problem.code
        for problem in found.value.problems
    }
    assert told == {
        "training.target_loss": "out-of-range",
        "patience.stepz": "steps",
        "kind": "until_target",
    }


def test_what_one_recipe_lists_another_does_not_have(installed: Path) -> None:
    (installed / "unlisted.yaml").write_text(
        RECIPE.replace("plugins: [pebble]\n", ""), encoding="utf-8"
    )
    assert resolve_recipe("recipe.yaml", environment={}).run.kind == "until_target"
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe(str(installed / "unlisted.yaml"), environment={})
    unknown = {problem.path for problem in found.value.problems}
    assert {
        ("kind",),
        ("owner",),
        ("patience",),
        ("optimizer", "name"),
        ("model", "name"),
        ("training", "target_loss"),
    } <= unknown
    assert resolve_recipe("recipe.yaml", environment={}).run.kind == "until_target"


def test_it_is_imported_where_it_is_listed_only(tmp_path: Path) -> None:
    (tmp_path / "plain.yaml").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    script = (
        "import sys; from titanrun.cli.main import run_and_flush as main; listed = sys.argv[1]\n"
        "main(['validate', 'plain.yaml']); main(['ls', 'plugins']); before = 'pebble' in "
        "sys.modules\n"
        "code = main(['validate', listed]); print(before, 'pebble' in sys.modules, 'torch' in "
        "sys.modules, code)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(PLUGINS), str(ROOT), os.environ.get("PYTHONPATH", ""))),
    }
    command = [sys.executable, "-c", script, "recipe.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert done.stdout.splitlines()[-1] == "False True False 0", done.stderr


FIELDS = """
from typing import ClassVar
from titanrun.config.extension_fields import ExtensionFields
from titanrun.config.fields import numerics
PLUGIN_API = 1


class More(ExtensionFields):
    adds_to: ClassVar = "{section}"
    {field}
"""
CLASHES = {
    "field": (
        FIELDS.format(section="training", field="steps: int = numerics(1)"),
        "adds training.steps, which already exists",
    ),
    "top": (
        FIELDS.format(section="", field="model: int = numerics(1)"),
        "adds model, which already exists",
    ),
    "another": (
        FIELDS.format(section="", field="owner: int = numerics(1)"),
        "adds owner, which already exists",
    ),
    "nowhere": (
        FIELDS.format(section="trainig", field="one: int = numerics(1)"),
        "adds fields to 'trainig', which is not a section",
    ),
    "required": (
        FIELDS.format(section="training", field="one: int = numerics()"),
        "adds training.one without a default",
    ),
    "choice": (
        "from titanrun.components.optimizers.config import AdamWConfig\nfrom typing import "
        "ClassVar, Literal\nPLUGIN_API = 1\n"
        "class Mine(AdamWConfig):\n    name: Literal['adamw'] = 'adamw'\n    builds: ClassVar "
        "= 'x:y'\n",
        "defines optimizer 'adamw', which already exists",
    ),
    "kind": (
        "from titanrun.recipe.trainer_kinds import TrainerKind\nPLUGIN_API = 1\n"
        "class Mine(TrainerKind):\n    name = 'pretrain'\n    builds = 'x:y'\n",
        "defines kind 'pretrain', which already exists",
    ),
    "rule": (
        "from titanrun.recipe.rules.registry import rule\nPLUGIN_API = "
        "1\n@rule('batch-sizes-divide')\ndef mine(run): yield\n",
        "cannot be imported: ValueError: rule 'batch-sizes-divide' is registered twice",
    ),
    "broken": (
        "import nothing_of_that_name\n",
        "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that_name'",
    ),
    "silent": ("", "does not state which version of the plug-in API it was written for"),
    "newer": (
        "PLUGIN_API = 2\n",
        "was written for version 2 of the plug-in API, but this titanrun has version 1",
    ),
}


@pytest.mark.parametrize("clash", CLASHES)
def test_a_plug_in_that_does_not_fit_is_a_problem_where_it_is_listed(
    clash: str, installed: Path
) -> None:
    text, message = CLASHES[clash]
    name = f"clashing_{clash}"
    install(installed, name, text)
    with pytest.raises(ProblemsFound) as found:
        resolve_recipe("recipe.yaml", [f"plugins=[pebble, {name}]"], environment={})
    problem: Problem = found.value.problems[0]
    assert problem.message.startswith(f"plug-in '{name}' {message}")
    assert (problem.path, problem.origin is not None, problem.hint is not None) == (
        ("plugins", 1),
        True,
        True,
    )
