"""Components that need a package which is not installed."""

from pathlib import Path

import pytest

from titanrun.recipe.resolving.validation_levels import validate_file
from titanrun.recipe.rules import data

RECIPE = (
    "version: 1\nmodel: {name: llama3, flavor: debugmodel}\ntokenizer: tiny\n"
    "training: {dataset: tiny, steps: 4}\nmetrics: {trackers: [tensorboard, wandb, csv]}\n"
)


@pytest.mark.parametrize("missing", [set(), {"wandb"}, {"tensorboard", "wandb"}])
def test_a_package_that_is_missing_is_named_at_what_needs_it(
    missing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def is_installed(package: str) -> bool:
        asked.append(package)
        return package not in missing

    monkeypatch.setattr(data, "is_installed", is_installed)
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE)
    found = validate_file(str(file), [], level="environment", environment={}).problems
    assert {problem.message.partition(" needs")[0]: problem.hint for problem in found} == {
        f"metrics.trackers[{['tensorboard', 'wandb'].index(name)}]": (
            f'pip install "titanrun[{name}]"'
        )
        for name in missing
    }
    assert all(problem.code == "usage" for problem in found)
    # others need nothing
    assert sorted(asked) == ["tensorboard", "wandb"]


def test_the_package_is_what_is_imported_and_the_extra_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "is_installed", lambda package: package != "lm_eval")
    file = tmp_path / "recipe.yaml"
    file.write_text(
        RECIPE + "kind: eval\nevaluation: {tasks: [{name: lm_eval, task: hellaswag}]}\n"
    )
    found = validate_file(str(file), [], level="environment", environment={}).problems
    [problem] = [one for one in found if "needs the package" in one.message]
    assert "needs the package 'lm_eval', which is not installed" in problem.message
    assert problem.hint == 'pip install "titanrun[lm-eval]"'
