"""Several datasets of other programs become a mixture, with a number of records as its limit."""

import json
from pathlib import Path
from typing import Any

import pytest

from titanrun.components.tokenizers.config import CharactersTokenizerConfig, TinyTokenizerConfig
from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.migration import Migration, find_recipe_problems, migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.program_detection import PROGRAMS

MODEL = "meta-llama/Llama-3.1-8B"
EQUAL_SHARES = "a mixture reads equal shares of its sources"
LLAMAFACTORY: dict[str, Any] = {
    "model_name_or_path": MODEL,
    "stage": "sft",
    "finetuning_type": "full",
    "dataset": "one,two",
}


def migrate(folder: Path, program: str, data: dict[str, Any] | str) -> Migration:
    """Return the migration of a configuration."""
    file = folder / "theirs.yaml"
    file.write_text(data if isinstance(data, str) else to_yaml(data), encoding="utf-8")
    tool = PROGRAMS[program]
    return migrate_file(str(file), tool, recipe_name="recipe.yaml", header_lines=())


def get_dataset(migration: Migration) -> Any:
    """Return training.dataset of the recipe."""
    data: Any = to_plain_data(read_source_text(SourceText("r.yaml", migration.text), "yaml"))
    return data["training"]["dataset"]


def list_outcomes(migration: Migration) -> dict[str, tuple[str, str]]:
    """Return the outcome of every written key, with its reason."""
    return {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


AXOLOTL = f"""\
base_model: {MODEL}
datasets:
  - path: one.jsonl
    type: chat_template
    field_messages: turns
  - path: me/two  # from the Hub
    type: alpaca
    split: train
sample_packing: true
shuffle_merged_datasets: false
"""


def test_datasets_of_axolotl_are_sources(tmp_path: Path) -> None:
    migration = migrate(tmp_path, "axolotl", AXOLOTL)
    shared = {"packing": "best_fit"}
    one = {"name": "chat", "layout": "messages", "column": "turns", "path": "one.jsonl"}
    two = {"name": "chat", "layout": "alpaca", "repo": "me/two", "split": "train"}
    assert get_dataset(migration) == {
        "name": "mixture",
        "shuffle": False,
        "sources": [{"dataset": {**one, **shared}}, {"dataset": {**two, **shared}}],
    }
    outcomes = list_outcomes(migration)
    assert migration.exit_code == 0
    assert outcomes["datasets[1].path"][0] == "mapped"
    assert EQUAL_SHARES in outcomes["datasets[1].type"][1]
    assert "# from the Hub" in migration.text
    assert "datasets[1].split" in format_migration_report(migration, "theirs.yaml")


def test_a_dataset_that_cannot_be_read_leaves_the_first_alone(tmp_path: Path) -> None:
    text = AXOLOTL.replace("type: alpaca", "type: oasst")
    migration = migrate(tmp_path, "axolotl", text)
    assert get_dataset(migration)["path"] == "one.jsonl"
    outcome, words = list_outcomes(migration)["datasets[1].type"]
    assert outcome == "refused" and "the first is carried over" in words


def test_datasets_of_torchtune_are_sources(tmp_path: Path) -> None:
    data = {
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "path": "x"},
        "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
        "dataset": [
            {"_component_": "torchtune.datasets.chat_dataset", "source": "me/one"},
            {"_component_": "torchtune.datasets.alpaca_dataset"},
        ],
    }
    found = get_dataset(migrate(tmp_path, "torchtune", data))
    assert [one["dataset"]["repo"] for one in found["sources"]] == ["me/one", "tatsu-lab/alpaca"]


def test_datasets_of_llamafactory_are_sources_with_the_number_of_records(tmp_path: Path) -> None:
    migration = migrate(tmp_path, "llamafactory", {**LLAMAFACTORY, "max_samples": 1000})
    sources = get_dataset(migration)["sources"]
    assert [one["dataset"]["path"] for one in sources] == ["data/one.json", "data/two.json"]
    assert [one["max_rows"] for one in sources] == [1000, 1000]
    assert list_outcomes(migration)["max_samples"] == ("mapped", "")
    assert migration.exit_code == 0
    alone = migrate(tmp_path, "llamafactory", {**LLAMAFACTORY, "dataset": "one", "max_samples": 9})
    assert [one["max_rows"] for one in get_dataset(alone)["sources"]] == [9]
    assert "equal shares" not in list_outcomes(alone)["dataset"][1]
    packed = {**LLAMAFACTORY, "max_samples": 1000, "neat_packing": True}
    assert list_outcomes(migrate(tmp_path, "llamafactory", packed))["max_samples"] == (
        "changed",
        "max_rows counts packed sequences, of several conversations each",
    )


def write_sources(folder: Path) -> None:
    """Write two records in JSON lines, and three in a list."""
    (folder / "one.jsonl").write_text('{"turns": []}\n\n{"turns": []}\n', encoding="utf-8")
    (folder / "two.json").write_text(json.dumps([{"instruction": "a"}] * 3), encoding="utf-8")


@pytest.mark.parametrize("packs", [False, True])
def test_sources_in_files_have_shares_by_size(
    packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    text = AXOLOTL.replace("me/two  # from the Hub", "two.json")
    migration = migrate(tmp_path, "axolotl", text.replace("packing: true", f"packing: {packs}"))
    weights = [one["weight"] for one in get_dataset(migration)["sources"]]
    sizes = [(tmp_path / name).stat().st_size for name in ("one.jsonl", "two.json")]
    assert weights == (sizes if packs else [2, 3])
    words = list_outcomes(migration)["datasets[0].type"][1]
    assert ("size of the files" if packs else "number of records") in words


def test_sources_of_which_one_packs_have_equal_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path)
    text = AXOLOTL.replace("me/two  # from the Hub", "two.json")
    text = text.replace(MODEL, "mistralai/Mistral-7B-v0.1")
    migration = migrate(tmp_path, "axolotl", text.replace("type: alpaca", "type: completion"))
    assert not any("weight" in one for one in get_dataset(migration)["sources"])
    assert EQUAL_SHARES in list_outcomes(migration)["datasets[1].type"][1]


def test_a_number_of_records_limits_the_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, number in (("one", 5), ("two", 2)):
        (tmp_path / "data" / f"{name}.json").write_text(json.dumps([{}] * number), encoding="utf-8")
    migration = migrate(tmp_path, "llamafactory", {**LLAMAFACTORY, "max_samples": 3})
    assert [one["weight"] for one in get_dataset(migration)["sources"]] == [3, 2]


def test_held_out_records_of_llamafactory_are_validated(pairs: Path) -> None:
    data = {**PAIRS, "dataset": "one", "eval_dataset": "two", "per_device_eval_batch_size": 2}
    migration = migrate(pairs, "llamafactory", data)
    found: Any = to_plain_data(read_source_text(SourceText("r.yaml", migration.text), "yaml"))
    assert found["validation"]["enable"] is True
    own = found["training"]["dataset"]
    assert found["validation"]["dataset"] == {**own, "path": own["path"].replace("one", "two")}


def test_mappings_of_the_second_dataset_are_whole(tmp_path: Path) -> None:
    mapping = "    message_property_mappings: {role: from, content: value}\n"
    text = AXOLOTL.replace("    type: alpaca\n", f"    type: chat_template\n{mapping}")
    migration = migrate(tmp_path, "axolotl", text)
    assert migration.exit_code == 0
    layouts = [one["dataset"]["layout"] for one in get_dataset(migration)["sources"]]
    assert layouts == ["messages", "sharegpt"]


def test_a_number_of_held_out_records_leaves_the_mixture(tmp_path: Path) -> None:
    migration = migrate(tmp_path, "llamafactory", {**LLAMAFACTORY, "val_size": 20})
    assert len(get_dataset(migration)["sources"]) == 2
    (problem,) = [one for one in migration.problems if one.severity == "error"]
    assert (migration.exit_code, problem.hint) == (
        1,
        "set validation.holdout to a share: 20 of 1,000 is 0.02",
    )


def test_one_dataset_stays_one(tmp_path: Path) -> None:
    migration = migrate(tmp_path, "llamafactory", {**LLAMAFACTORY, "dataset": "one"})
    assert get_dataset(migration)["name"] == "chat"


@pytest.mark.parametrize("program", ["axolotl", "llamafactory", "torchtune"])
def test_an_unknown_key_without_a_value_is_left_out(program: str, tmp_path: Path) -> None:
    model = {"axolotl": "base_model", "llamafactory": "model_name_or_path"}.get(
        program, "output_dir"
    )
    migration = migrate(tmp_path, program, f"{model}: {MODEL}\nno_such_thing:\n")
    assert list_outcomes(migration)["no_such_thing"] == ("unread", "left out: it has no value")
    migration = migrate(tmp_path, program, f"{model}: {MODEL}\nno_such_thing: 3\n")
    assert list_outcomes(migration)["no_such_thing"][0] == "refused"


@pytest.mark.parametrize(
    ("template", "named", "outcome"),
    [
        ("chatml", "chatml", "changed"),
        ("llama2", None, "refused"),
        ("deepseek3", "deepseek_v3", "changed"),
    ],
)
def test_a_folder_without_a_template_takes_the_one_of_the_same_name(
    template: str, named: str | None, outcome: str, tmp_path: Path
) -> None:
    data = {**LLAMAFACTORY, "template": template}
    bare = {**data, "model_name_or_path": str(CharactersTokenizerConfig().folder)}
    migration = migrate(tmp_path, "llamafactory", bare)
    found: Any = to_plain_data(read_source_text(SourceText("r.yaml", migration.text), "yaml"))
    assert found.get("tokenizer", {}).get("chat_template") == named
    assert list_outcomes(migration)["template"][0] == outcome
    own = {**data, "model_name_or_path": str(TinyTokenizerConfig().folder)}
    outcome, words = list_outcomes(migrate(tmp_path, "llamafactory", own))["template"]
    assert (outcome, "the template in the model's folder is used" in words) == ("unread", True)


PAIRS: dict[str, Any] = {**LLAMAFACTORY, "stage": "dpo", "dataset_dir": "info"}
ROW = '{"instruction": "a?", "chosen": "yes", "rejected": "no"}\n'


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a description of two files with pairs, and of a dataset on the Hub."""
    monkeypatch.chdir(tmp_path)
    info = {
        "one": {"file_name": "one.jsonl"},
        "two": {"file_name": "two.jsonl"},
        "hub": {"hf_hub_url": "me/hub", "split": "train_prefs"},
        "kept": {"file_name": "one.jsonl"},
    }
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    for name in ("one", "two"):
        (tmp_path / "info" / f"{name}.jsonl").write_text(ROW, encoding="utf-8")
    return tmp_path


def find_errors(migration: Migration, **changed: Any) -> list[str]:
    """Return the errors in the migrated recipe with other settings of its dataset."""
    data: Any = to_plain_data(read_source_text(SourceText("r.yaml", migration.text), "yaml"))
    data["training"]["dataset"] |= changed
    problems = find_recipe_problems(to_yaml(data), "r.yaml")
    return [problem.message for problem in problems if problem.severity == "error"]


@pytest.mark.parametrize("stage", ["dpo", "rm", "kto"])
def test_datasets_of_compared_replies_are_told_to_be_one(stage: str, pairs: Path) -> None:
    migration = migrate(pairs, "llamafactory", {**PAIRS, "stage": stage, "dataset": "one, two"})
    assert get_dataset(migration)["path"] == "info/one.jsonl"
    assert migration.exit_code == 1
    report = format_migration_report(migration, "theirs.yaml")
    refused = report.partition("refused:\n")[2].partition("\n\n")[0]
    assert "line 4: dataset: two" in refused and "mixture;" not in refused
    assert "files of one folder, and name it in training.dataset.path:" in refused
    assert "# dataset: two\n" in migration.text
    assert find_errors(migration, path="info/*.jsonl") == []


def test_pairs_of_the_hub_are_told_which_fields_the_folder_replaces(pairs: Path) -> None:
    migration = migrate(pairs, "llamafactory", {**PAIRS, "dataset": "hub,one"})
    assert "name it in training.dataset.path instead of repo, split" in migration.text


def test_datasets_of_pairs_of_axolotl_are_told_to_be_one(tmp_path: Path) -> None:
    text = AXOLOTL.replace("sample_packing: true", "rl: dpo")
    text = text.replace("type: alpaca", "type: chatml.intel").replace(
        "type: chat_template", "type: chatml.intel"
    )
    outcomes = list_outcomes(migrate(tmp_path, "axolotl", text))
    for key in ("path", "type", "split"):
        outcome, words = outcomes[f"datasets[1].{key}"]
        assert outcome == "refused" and "not from a mixture" in words


def test_a_number_of_pairs_is_told_as_a_part_of_a_split_or_of_the_files(pairs: Path) -> None:
    limited = {**PAIRS, "max_samples": 1000}
    hub = migrate(pairs, "llamafactory", {**limited, "dataset": "hub"})
    outcome, words = list_outcomes(hub)["max_samples"]
    assert (outcome, words.partition("set ")[2]) == (
        "refused",
        'training.dataset.split: "train_prefs[:1000]"',
    )
    assert find_errors(hub, split="train_prefs[:1000]") == []
    few = migrate(pairs, "llamafactory", {**limited, "dataset": "one"})
    assert list_outcomes(few)["max_samples"] == ("unread", "left out: the data have 1 record")
    (pairs / "info" / "one.jsonl").write_text(f"{ROW}\n" * 2, encoding="utf-8")
    files = migrate(pairs, "llamafactory", {**limited, "max_samples": 1, "dataset": "one"})
    assert "remove the others from the files" in list_outcomes(files)["max_samples"][1]


def test_a_refused_dataset_beside_the_first_is_told_with_its_own_reason(tmp_path: Path) -> None:
    text = AXOLOTL.replace("type: alpaca", "type: oasst")
    words = list_outcomes(migrate(tmp_path, "axolotl", text))["datasets[1].type"][1]
    assert words.startswith("not a supported format")


@pytest.mark.parametrize(
    ("name", "hint"),
    [("kpet", "did you mean 'kept'?"), ("elsewhere", "it has hub, kept, one and two")],
)
def test_a_name_that_dataset_info_lacks_is_told(name: str, hint: str, pairs: Path) -> None:
    for stage in ("sft", "dpo"):
        migration = migrate(pairs, "llamafactory", {**PAIRS, "stage": stage, "dataset": name})
        assert list_outcomes(migration)["dataset"] == (
            "refused",
            f"info/dataset_info.json has no dataset '{name}': {hint}",
        )
    migration = migrate(pairs, "llamafactory", {**PAIRS, "dataset": f"one,{name}"})
    assert f"has no dataset '{name}'" in migration.text


def test_a_dataset_info_that_is_missing_or_unreadable_is_told(pairs: Path) -> None:
    data = {**PAIRS, "dataset": "one"}
    (pairs / "info" / "dataset_info.json").write_text("[]", encoding="utf-8")
    words = list_outcomes(migrate(pairs, "llamafactory", data))["dataset"][1]
    assert "info/dataset_info.json is no JSON file with an entry for each dataset" in words
    away = migrate(pairs, "llamafactory", {**data, "dataset_dir": "away"})
    words = list_outcomes(away)["dataset"][1]
    assert "away/dataset_info.json was not found from here" in words
