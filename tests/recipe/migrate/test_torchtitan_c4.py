"""Configurations of torchtitan that read C4, and where their recipes read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.config.base import dump_config
from titanrun.recipe.migrate.migration import migrate_file
from titanrun.recipe.migrate.torchtitan import TORCHTITAN
from titanrun.recipe.resolving.resolve import resolve_recipe

DUMPS = Path(__file__).parent / "dumps"
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


@pytest.mark.parametrize(
    ("name", "shuffle", "size", "expected"),
    [
        ("c4", True, 1000, {"window": 1000}),
        ("c4", True, 500, {"window": 500}),
        ("c4", False, 500, {}),
        ("c4_test", True, 500, {}),
    ],
)
def test_the_shuffle_buffer_of_later_versions_is_the_window(
    name: str, shuffle: bool, size: int, expected: dict[str, int], tmp_path: Path
) -> None:
    dump = json.loads((DUMPS / "head.json").read_text(encoding="utf-8"))
    chosen: dict[str, Any] = {"dataset": name, "shuffle": shuffle}
    dump["dataloader"] |= {**chosen, "streaming_shuffle_buffer_size": size}
    (tmp_path / "head.json").write_text(json.dumps(dump), encoding="utf-8")
    migration = migrate_file(
        str(tmp_path / "head.json"), TORCHTITAN, recipe_name="recipe.yaml", header_lines=()
    )
    items = {item.entry.written_path: item for item in migration.items if item.entry}
    buffer = items["dataloader.streaming_shuffle_buffer_size"]
    assert {target[-1]: value for target, value in buffer.targets.items()} == expected
    assert buffer.outcome == ("changed" if expected else "unread")
    # a stream that is shuffled has other sequences than torchtitan's, and says so
    is_told = "in another order than torchtitan's" in items["dataloader.shuffle"].words
    assert is_told == bool(expected)
