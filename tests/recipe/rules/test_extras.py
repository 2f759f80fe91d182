"""Packages that a recipe needs and this machine lacks."""

import platform
from pathlib import Path

import pytest

from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rules import data
from titanrun.recipe.rules.data import extras_installed

GROUPS = """\
version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64}
checkpoint: {enable: true}
fault_tolerance: {enable: true}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "recipe.yaml").write_text(GROUPS)
    return resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}).recipe


@pytest.mark.parametrize(
    ("system", "machine", "hint"),
    [
        ("Linux", "x86_64", 'pip install "titanrun[torchft]"'),
        ("Linux", "aarch64", "wheels only for Linux on x86_64"),
        ("Darwin", "arm64", "this is Darwin on arm64"),
    ],
)
def test_a_machine_for_which_there_is_no_wheel_is_told_so(
    system: str, machine: str, hint: str, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "is_installed", lambda package: False)
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (found,) = extras_installed(recipe)
    assert hint in str(found.hint)
