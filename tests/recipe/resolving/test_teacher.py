"""The recipe of a teacher, read beside the one of the run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.recipe import Recipe
from titanrun.recipe.resolving import teacher
from titanrun.recipe.resolving.resolve import resolve_recipe

RECIPE = """version: 1
kind: sft
tokenizer: tiny
model: {{name: llama3, flavor: debugmodel, attention: {{mask: block_causal}}}}
training: {{dataset: tiny_chat, seq_len: 64, steps: 2}}
loss: {{name: distillation, teacher: {}}}
"""


def test_a_teacher_needs_no_plugin_that_the_run_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(tmp_path))
    run = resolve_recipe(str(tmp_path / "recipe.yaml"), environment={}).run
    activated: list[Any] = []
    monkeypatch.setattr(teacher, "activate_plugins", lambda names, places: activated.append(names))

    def open_with(*plugins: str) -> Recipe:
        own = SimpleNamespace(plugins=plugins)
        monkeypatch.setattr(teacher, "find_teacher", lambda named: ({"checkpoint": "step-2"}, own))
        found = teacher.open_teacher(run)
        assert found is not None and found.folder == "step-2"
        return found.recipe

    monkeypatch.setattr(teacher, "build_teacher_recipe", lambda run, own: own)
    assert open_with().plugins == ()
    with pytest.raises(ProblemsFound) as found:
        open_with("pebble")
    (problem,) = found.value.problems
    assert (problem.path, problem.hint) == (("loss", "teacher"), "add pebble to plugins")
    # reading the teacher's recipe may have activated its plug-ins
    assert activated == [run.plugins] * 2
