"""Configurations of torchtitan that read C4, and where their recipes read it."""

from pathlib import Path

import pytest

from titanrun.config.base import dump_config
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.resolving.resolve import resolve_recipe

COPIES_OF_C4 = [
    ("allenai/c4", {}),
    (
        "mirror/c4",
        {"name": "hub", "repo": "mirror/c4", "subset": "en", "split": "SPLIT", "streaming": True},
    ),
    (
        "/data/c4/",
        {"name": "text", "path": "/data/c4/en/c4-SPLIT.*.json.gz", "streaming": True},
    ),
    (
        "copies/c4",
        {"name": "text", "path": "copies/c4/en/c4-SPLIT.*.json.gz", "streaming": True},
    ),
]


@pytest.mark.parametrize(("place", "expected"), COPIES_OF_C4)
@pytest.mark.parametrize(
    ("section", "name", "split"),
    [("training", "c4", "train"), ("validation", "c4_validation", "validation")],
)
def test_c4_is_streamed_from_where_it_is(
    section: str,
    name: str,
    split: str,
    place: str,
    expected: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Copies of C4 hold the files and subsets of allenai/c4: en/c4-train.00000-of-01024.json.gz."""
    monkeypatch.chdir(tmp_path)
    # a folder here comes before a dataset of the Hub, as in the datasets library
    (tmp_path / "copies" / "c4").mkdir(parents=True)
    chosen = f'dataset = "{name}"\ndataset_path = "{place}"\n'
    config = "[training]\nsteps = 9\n{training}[validation]\nenable = true\nsteps = 2\n{validation}"
    texts = {"training": "", "validation": "", section: chosen}
    (tmp_path / "config.toml").write_text(config.format(**texts), encoding="utf-8")
    migration = migrate_file("config.toml", TORCHTITAN, recipe_name="recipe.yaml", header_lines=())
    (tmp_path / "recipe.yaml").write_text(migration.text, encoding="utf-8")
    run = resolve_recipe(str(tmp_path / "recipe.yaml"), [], environment={}, ranks=1).run
    read = dump_config(getattr(run, section).dataset)
    wanted = {"name": name, **expected, "shuffle": False}
    for key, value in wanted.items():
        assert read[key] == (value.replace("SPLIT", split) if isinstance(value, str) else value)
    assert getattr(run, section).dataset.is_streamed
