"""What two recipes, runs or checkpoints differ in, and where each value was written."""

import re
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile

import pytest

from titanrun.cli.diff_config import format_field_change
from titanrun.config.tree import format_path
from titanrun.recipe.comparing.recipe_diff import DiffView, diff_recipes, load_diff_side
from titanrun.recipe.rundir.run_directory import select_run_directory, write_run_directory
from titanrun.recipe.rundir.run_files import RESOLVED

RECIPE = """version: 1
model: {name: llama3, flavor: debugmodel}
optimizer: adamw
training:
  dataset: tiny
  steps: 4
  global_batch_size: auto
checkpoint: {interval: 10m}
converters: [float8_linear]
"""
OTHER = RECIPE.replace("adamw", "{name: sgd, lr: 2.0e-3}").replace("steps: 4", "steps: 8")


@pytest.fixture(autouse=True)
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(RECIPE.replace("converters: [float8_linear]\n", ""))
    Path("other.yaml").write_text(OTHER.replace("converters: [float8_linear]\n", ""))


def start(source: str, *overrides: str) -> None:
    """Open the run directory `run`, or resume the run in it, as `titanrun train` does."""
    resolved = load_diff_side(source, [*overrides, "dump_folder=run"], {}).resolved
    now = datetime.now(UTC)
    directory = select_run_directory(resolved, now)
    write_run_directory(directory, resolved, ["titanrun", "train"], now, environment={})


def told(left: str, right: str, view: DiffView = "written", *overrides: str) -> list[str]:
    found = diff_recipes(load_diff_side(left, [], {}), load_diff_side(right, overrides, {}), view)
    return [f"{format_path(item.change.path)} {format_field_change(item)}" for item in found]


def test_a_component_written_by_its_name_alone_has_an_origin() -> None:
    # Row C3 of the defect list
    assert told("mine.yaml", "other.yaml", "effective")[0].startswith(
        "optimizer.name adamw (mine.yaml:3) -> sgd (other.yaml:3)"
    )
    Path("list.yaml").write_text(RECIPE)
    assert told("mine.yaml", "list.yaml")[-1].endswith("(list.yaml:9)")


def told_values(*sides: str) -> list[str]:
    """Return the differences of what is written, without the lines of resolved.yaml."""
    return [
        re.sub(r" \((run/)?resolved\.yaml:\d+\)", "", line)
        for line in told(*sides[:2], "written", *sides[2:])
    ]


def test_only_what_the_recipe_of_a_run_wrote_counts_as_written() -> None:
    # Row C4 of the defect list
    start("mine.yaml", "debug.seed=3")
    assert told_values("run", "mine.yaml") == ["debug - {seed: 3}"]
    assert told_values("mine.yaml", "run/resolved.yaml") == ["debug + {seed: 3}"]
    assert told_values("run", "mine.yaml", "debug.seed=4") == ["debug.seed 3 -> 4 (override 1)"]


def test_a_resumed_run_still_knows_what_was_written() -> None:
    start("mine.yaml", "debug.seed=3")
    start("run", "training.steps=6")
    assert sorted(told_values("run", "mine.yaml")) == [
        "debug - {seed: 3}",
        "training.steps 6 -> 4 (mine.yaml:6)",
    ]


def test_of_a_resolved_recipe_alone_the_shortest_recipe_counts() -> None:
    start("mine.yaml", "debug.seed=3")
    Path("elsewhere").mkdir()
    copyfile(Path("run", RESOLVED), Path("elsewhere", RESOLVED))
    paths = [line.split()[0] for line in told("elsewhere", "mine.yaml")]
    assert paths[:1] == ["name"] and "debug" in paths and len(paths) < 6
