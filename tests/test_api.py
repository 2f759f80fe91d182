"""The public names of `titanrun`, and what the entry points accept."""

import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import titanrun

ROOT = Path(__file__).parents[1]
RECIPE = str(ROOT / "recipes" / "llama3_debug.yaml")
SMALL = ["training.mixed_precision_param=float32", "training.steps=12"]


def test_exports_are_the_names_of_the_page() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert set(titanrun.__all__) == set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert titanrun.__all__ == sorted(titanrun._EXPORTS)
    assert set(dir(titanrun)) == {*titanrun.__all__, "__version__"}


def test_a_type_checker_sees_the_same_names() -> None:
    text = (ROOT / "titanrun" / "__init__.py").read_text()
    seen = re.findall(r"^    from ([\w.]+) import (\w+) as (\w+)$", text, re.MULTILINE)
    assert {name: module for module, name, alias in seen if name == alias} == titanrun._EXPORTS


def test_no_export_is_named_as_a_submodule() -> None:
    modules = {module.name for module in pkgutil.iter_modules(titanrun.__path__)}
    assert not modules & set(titanrun.__all__)


@pytest.mark.parametrize("name", [*titanrun.__all__, "__version__"])
def test_each_export_imports(name: str) -> None:
    value = getattr(titanrun, name)
    if name != "__version__":
        assert value is getattr(import_module(titanrun._EXPORTS[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_recipes'"):
        titanrun.load_recipes  # noqa: B018


def test_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, titanrun; "
        "print([m for m in ('torch', 'pydantic', 'ruamel', 'ruamel.yaml') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout == "[]\n"


def test_recipes_load_without_torch() -> None:
    program = (
        "import sys, titanrun; "
        f"titanrun.load_recipe({RECIPE!r}); titanrun.validate_recipe({RECIPE!r}); "
        "print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout == "False\n"


def test_load_recipe_returns_the_resolved_run(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = titanrun.load_recipe(Path(RECIPE), ["training.steps=50"])
    assert isinstance(recipe, titanrun.Recipe) and recipe.training.steps == 50
    resolved = titanrun.resolve_recipe(RECIPE, ["training.steps=50"])
    assert isinstance(resolved, titanrun.Resolved) and resolved.run == recipe
    override = ["training.steps=${env:STEPS}"]
    assert titanrun.load_recipe(RECIPE, override, environment={"STEPS": "20"}).training.steps == 20
    monkeypatch.setenv("STEPS", "30")
    assert titanrun.load_recipe(RECIPE, override).training.steps == 30
    with pytest.raises(titanrun.ProblemsFound):
        titanrun.load_recipe(RECIPE, ["training.step=50"])


def test_a_resolved_recipe_loads_again(tmp_path: Path) -> None:
    resolved = titanrun.resolve_recipe(RECIPE, SMALL)
    (tmp_path / "resolved.yaml").write_text(resolved.text)
    assert titanrun.load_resolved(tmp_path / "resolved.yaml") == resolved.run
    assert titanrun.load_recipe(tmp_path / "resolved.yaml") == resolved.run


def test_validate_recipe_returns_problems() -> None:
    assert titanrun.validate_recipe(RECIPE) == []
    wrong = ["training.step=50", "parallelism.tensor_parallel_degree=3"]
    problems = titanrun.validate_recipe(RECIPE, wrong)
    assert "unknown-key" in {problem.code for problem in problems}
    assert all(isinstance(problem, titanrun.Problem) for problem in problems)
    assert "training.step" in titanrun.render_problems(problems)
    assert titanrun.validate_recipe(RECIPE, wrong, level="syntax") == []


def test_open_engine_takes_a_file_a_recipe_and_a_resolved_recipe() -> None:
    tokens = torch.arange(16).view(2, 8) % 50
    losses = []
    for source, overrides in (
        (RECIPE, SMALL),
        (Path(RECIPE), SMALL),
        (titanrun.load_recipe(RECIPE, SMALL), ()),
        (titanrun.resolve_recipe(RECIPE, SMALL), ()),
    ):
        handle = titanrun.open_engine(source, overrides)
        batch = titanrun.TokenBatch.from_padded(tokens, torch.tensor([8, 5]))
        output = handle.engine.forward_backward(batch)
        handle.engine.optim_step()
        losses.append((float(output.loss), handle.resolved_text))
        assert isinstance(handle, titanrun.EngineHandle)
        handle.close()
    assert len(set(losses)) == 1


@pytest.mark.parametrize("open_function", ["open_engine", "open_policy_trainer"])
@pytest.mark.parametrize("load", ["load_recipe", "resolve_recipe"])
def test_overrides_of_a_loaded_recipe_are_a_problem(open_function: str, load: str) -> None:
    recipe = getattr(titanrun, load)(RECIPE, SMALL)
    with pytest.raises(titanrun.ProblemsFound, match="loaded already") as error:
        getattr(titanrun, open_function)(recipe, ["training.steps=4"])
    assert [problem.code for problem in error.value.problems] == ["usage"]


def test_a_loaded_recipe_is_checked_for_the_ranks_there_are() -> None:
    degree = ["parallelism.data_parallel_shard_degree=2"]
    recipe = titanrun.load_recipe(RECIPE, [*SMALL, *degree])
    with pytest.raises(titanrun.ProblemsFound):
        titanrun.open_engine(recipe)


def test_the_page_is_fresh() -> None:
    subprocess.run([sys.executable, "tools/write_api.py", "--check"], check=True, cwd=ROOT)
