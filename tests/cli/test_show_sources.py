"""`titanrun show --sources` of a run names the places where its values were written."""

from datetime import datetime
from pathlib import Path

import pytest

from titanrun.cli.show import run as show
from titanrun.recipe.resolving.resolve import resolve_recipe
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory

NOW = datetime(2026, 11, 22, 3, 0, 0)
RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
training: {dataset: tiny, seq_len: 64}
"""


@pytest.mark.parametrize("named", ["runs/a/resolved.yaml", "runs/a", "a"])
def test_the_sources_of_a_run_are_those_that_it_recorded(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE)
    given = ["dump_folder=runs/a", "training.seq_len=32", "name=a"]
    run = resolve_recipe("mine.yaml", given, environment={})
    argv = ["titanrun", "train", "mine.yaml", *given]
    write_run_directory(select_run_directory(run, NOW), run, argv, NOW, environment={})
    assert show([named, "--sources"]) == 0
    sources = {
        line.split()[0]: " ".join(line.split()[2:]) for line in capsys.readouterr().out.splitlines()
    }
    assert sources["model.flavor"] == "mine.yaml:2:31"
    assert sources["training.seq_len"] == "<override 2> (over mine.yaml:3:36)"
    assert sources["lr_scheduler.total_steps"] == "decided"
    assert sources["debug.seed"] == "default"
    # what is typed now is not part of the run
    assert show([named, "--sources", "--json", "debug.seed=3", "debug.seed"]) == 0
    assert '"source": "override", "file": "<override 1>"' in capsys.readouterr().out
