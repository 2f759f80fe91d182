"""Settings of other programs that choose records are carried over or refused, never left out."""

from pathlib import Path
from typing import Any

import pytest

from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.program_detection import PROGRAMS

MODEL = "meta-llama/Llama-3.1-8B"


def migrate(folder: Path, program: str, data: dict[str, Any]) -> Migration:
    """Return the migration of a configuration."""
    file = folder / "theirs.yaml"
    file.write_text(to_yaml(data), encoding="utf-8")
    return migrate_file(str(file), PROGRAMS[program], recipe_name="recipe.yaml", header_lines=())


def migrate_axolotl(folder: Path, **dataset: Any) -> Migration:
    """Return the migration of a configuration of axolotl with one dataset."""
    data = {"base_model": MODEL, "datasets": [{"type": "chat_template", **dataset}]}
    return migrate(folder, "axolotl", data)


def get_dataset(migration: Migration) -> Any:
    """Return training.dataset of the recipe."""
    data: Any = to_plain_data(read_source_text(SourceText("r.yaml", migration.text), "yaml"))
    return data["training"]["dataset"]


def list_outcomes(migration: Migration) -> dict[str, tuple[str, str]]:
    """Return the outcome of every written key, with its reason."""
    return {
        item.entry.written_path.rpartition(".")[2]: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


def test_one_shard_of_axolotl_is_refused(tmp_path: Path) -> None:
    migration = migrate_axolotl(tmp_path, path="a.jsonl", shards=10, shards_idx=2)
    for key in ("shards", "shards_idx"):
        outcome, words = list_outcomes(migration)[key]
        assert outcome == "refused" and "only one shard" in words
    assert migration.exit_code == 1


@pytest.mark.parametrize("keys", [{"shards": 1, "shards_idx": 0}, {"preprocess_shards": 4}])
def test_shards_of_axolotl_that_are_all_read_are_left_out(
    keys: dict[str, int], tmp_path: Path
) -> None:
    migration = migrate_axolotl(tmp_path, path="a.jsonl", **keys)
    assert {list_outcomes(migration)[key][0] for key in keys} == {"unread"}
    assert migration.exit_code == 0


def test_a_part_of_a_split_of_axolotl_is_read_from_the_hub(tmp_path: Path) -> None:
    migration = migrate_axolotl(tmp_path, path="owner/set", split="train[:10]")
    assert get_dataset(migration)["split"] == "train[:10]"
    assert migration.exit_code == 0


def test_a_part_of_a_split_of_axolotl_is_refused_of_files(tmp_path: Path) -> None:
    migration = migrate_axolotl(tmp_path, path="a.jsonl", split="train[:10]")
    outcome, words = list_outcomes(migration)["split"]
    assert outcome == "refused" and "keep only these records in the files" in words
    whole = migrate_axolotl(tmp_path, path="a.jsonl", split="train")
    assert list_outcomes(whole)["split"][0] == "unread"


@pytest.mark.parametrize("key", ["split", "name"])
def test_a_split_of_axolotl_is_refused_of_a_folder_whose_files_are_all_read(
    key: str, tmp_path: Path
) -> None:
    migration = migrate_axolotl(tmp_path, path=str(tmp_path), **{key: "train"})
    outcome, words = list_outcomes(migration)[key]
    assert outcome == "refused" and "all files of a folder are read" in words
    files = {"path": "json", "data_files": ["a.jsonl"], key: "train"}
    assert list_outcomes(migrate_axolotl(tmp_path, **files))[key][0] == "unread"


def test_a_part_of_a_split_of_torchtune_is_read_from_the_hub(tmp_path: Path) -> None:
    def convert(**dataset: Any) -> Migration:
        data = {
            "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "path": "x"},
            "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
            "dataset": {"_component_": "torchtune.datasets.chat_dataset", **dataset},
        }
        return migrate(tmp_path, "torchtune", data)

    hub = convert(source="owner/set", split="train[5%:]")
    assert get_dataset(hub)["split"] == "train[5%:]"
    files = convert(source="json", data_files="a.json", split="train[5%:]")
    assert list_outcomes(files)["split"] == ("refused", "keep only these records in the files")
