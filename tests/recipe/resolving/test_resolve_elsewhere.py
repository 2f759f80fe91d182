"""Files of a run that another machine trains need not be on this one."""

from pathlib import Path

import pytest

from titanrun.config.problems import ProblemsFound
from titanrun.recipe.resolving.resolve_elsewhere import resolve_for_launch

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: {name: tokens, path: nowhere.npy}, seq_len: 64, steps: 2}
"""
SLURM = "launch: {name: slurm, time_limit: 2h}\n"
KUBERNETES = "launch: {name: kubernetes, image: x, volumes: [{claim: runs, path: /runs}]}\n"


@pytest.mark.parametrize("launch", ["", SLURM])
def test_what_trains_on_the_files_of_this_machine_needs_them(launch: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE + launch)
    with pytest.raises(ProblemsFound) as found:
        resolve_for_launch(str(file), environment={})
    assert [problem.message for problem in found.value.problems] == [
        "file not found: 'nowhere.npy'"
    ]


def test_what_trains_on_other_files_warns_of_those_that_are_not_here(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE + KUBERNETES)
    resolved = resolve_for_launch(str(file), ["dump_folder=/runs/a"], environment={})
    messages = [problem.message for problem in resolved.warnings]
    assert "file not found: 'nowhere.npy'" in messages
