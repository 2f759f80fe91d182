"""The house tests: they run first and hold what everything else relies on."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shipped import RUN_RECIPES
from titanrun.config.base import dump_config
from titanrun.config.checksum import to_yaml_with_checksum
from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve import resolve_recipe

ROOT = Path(__file__).parents[1]
RECIPES = RUN_RECIPES
HEAVY = (
    "torch",
    "datasets",
    "torchao",
    "numpy",
    "rich",
    "transformers",
    "tokenizers",
    "safetensors",
)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_shipped_recipe_validates_without_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert resolve_recipe(str(path), environment={}).warnings == ()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_resolved_recipe_resolves_to_its_own_bytes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = resolve_recipe(str(path), environment={}).text
    saved = tmp_path / "resolved.yaml"
    saved.write_text(text, encoding="utf-8")
    again = resolve_recipe(str(saved), environment={})
    assert again.text == text
    assert to_yaml_with_checksum(dump_config(again.recipe)) == text
    assert again.warnings == ()


def test_yaml_and_toml_of_the_debug_recipe_resolve_to_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    texts = {
        resolve_recipe(f"recipes/llama3_debug{suffix}", environment={}).text
        for suffix in (".yaml", ".toml")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    "path", [path for path in RECIPES if path.suffix == ".yaml"], ids=lambda path: path.name
)
def test_every_recipe_starts_with_the_editor_line(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith(
        "# yaml-language-server: $schema=../schemas/recipe.schema.json\n"
    )


def test_floors_hold() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_floors.py", ROOT / "titanrun"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_schema_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "write_schemas.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ["--help"],
        ["validate", "recipes/llama3_debug.yaml"],
        ["show", "recipes/llama3_debug.yaml"],
        ["show", "recipes/llama3_debug.yaml", "--minimal"],
        ["explain", "training.steps"],
        ["explain", "--all"],
        ["ls"],
        ["cat", "llama3_debug"],
        ["init", "--help"],
        ["doctor", "--no-training"],
        ["schema"],
    ],
    ids=str,
)
def test_no_command_but_the_worker_loads_what_is_heavy(command: list[str]) -> None:
    code = (
        "import sys; from titanrun.cli.main import run\n"
        f"code = run({command!r})\n"
        f"loaded = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "print(code, loaded, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stderr.splitlines()[-1] == "0 []", done.stderr


def test_a_resolved_recipe_changed_by_hand_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    saved = tmp_path / "resolved.yaml"
    saved.write_text(
        resolve_recipe("recipes/llama3_debug.yaml", environment={}).text.replace(
            "seed: 0", "seed: 1"
        ),
        encoding="utf-8",
    )
    (warning,) = resolve_recipe(str(saved), environment={}).warnings
    assert "no longer matches the checksum" in warning.message


def test_a_missing_recipe_names_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("version: 1\n", encoding="utf-8")
    with pytest.raises(ProblemsFound) as caught:
        resolve_recipe("mime.yaml", environment={})
    assert caught.value.problems[0].code == "file"
    assert "mine.yaml" in str(caught.value.problems[0].hint)


def test_text_that_looks_like_a_reference_survives_resolving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = resolve_recipe(
        str(ROOT / "recipes" / "llama3_debug.yaml"), ["description=costs $${5}"], environment={}
    )
    Path("resolved.yaml").write_text(recipe.text, encoding="utf-8")
    assert resolve_recipe("resolved.yaml", environment={}).run.description == "costs ${5}"
    assert resolve_recipe("resolved.yaml", environment={}).text == recipe.text


# torch.load without weights_only, and pickle, run whatever code a file names; one of our unpicklers
# has a list of what it may build, the other builds a stand-in for everything
UNPICKLERS = {
    "titanrun/components/checkpoints/dcp_io.py": {"pickle.Unpickler", "pickle.UnpicklingError"},
    "titanrun/components/checkpoints/spec/verification.py": {
        "pickle.Unpickler",
        "pickle.UnpicklingError",
    },
    # with weights_only=True: tensors and plain data
    "titanrun/distributed/state_server.py": {"torch.load"},
    # these write what only torch's viewers read; the bytes that are loaded were made by torch a
    # moment before
    "titanrun/components/profiling/memory_snapshots.py": {"pickle.dump"},
    "titanrun/distributed/flight_recorder.py": {"pickle.loads", "pickle.dumps"},
    # messages over the pipe between a process and the child that it started: no file, no socket
    "titanrun/integrations/actors/local.py": {"pickle.loads", "pickle.dumps"},
    "titanrun/integrations/actors/local_rank.py": {
        *("pickle.loads", "pickle.dumps", "pickle.PicklingError"),
    },
}


def test_nothing_unpickles_what_a_file_names() -> None:
    for path in sorted((ROOT / "titanrun").rglob("*.py")):
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        assert "weights_only=False" not in text, name
        found = set(re.findall(r"\b(?:torch\.load|(?:pickle|dill|cloudpickle|joblib)\.\w+)", text))
        assert found <= UNPICKLERS.get(name, set()), name
