"""Configurations of torchtune, and what becomes of them.

The whole output for each setting in torchtune/ lies beside it, written by tools/write_reference.py.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.problems import ProblemsFound, SourceText
from titanrun.config.read_source import read_source, read_source_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.key_mapping import SourceKey
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.torchtune import TORCHTUNE
from titanrun.recipe.migrate.torchtune_table import TORCHTUNE_KEYS, WHOLE_VALUE_KEYS
from titanrun.recipe.migrate.yaml_entries import iter_values

FILES = sorted((Path(__file__).parent / "torchtune").glob("*.yaml"))
SMALL: dict[str, Any] = {
    "model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b"},
    "checkpointer": {
        "_component_": "torchtune.training.FullModelHFCheckpointer",
        "checkpoint_dir": "weights",
    },
    "tokenizer": {"max_seq_len": 1024},
    "dataset": {
        "_component_": "torchtune.datasets.chat_dataset",
        "source": "json",
        "data_files": "a.jsonl",
    },
    "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
    "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-5},
    "batch_size": 2,
    "epochs": 1,
    "seed": 1,
    "dtype": "bf16",
}
# the keys of the configurations that torchtune 0.6.1 ships for full and LoRA fine-tuning, QAT,
# distillation and DPO of text models
SHIPPED = (Path(__file__).parent / "torchtune" / "keys.txt").read_text(encoding="utf-8").split()


def migrated(data: dict[str, Any], folder: Path) -> Migration:
    file = folder / "config.yaml"
    file.write_text(to_yaml(data), encoding="utf-8")
    return migrate_file(str(file), TORCHTUNE, recipe_name="recipe.yaml", header_lines=())


def small(**changed: Any) -> dict[str, Any]:
    return {
        key: {**value, **changed.get(key, {})} if isinstance(value, dict) else value
        for key, value in SMALL.items()
    } | {
        key: value
        for key, value in changed.items()
        if not isinstance(value, dict) or key not in SMALL
    }


def recipe(migration: Migration) -> Any:
    return to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml"))


def fates(migration: Migration) -> dict[str, tuple[str, str]]:
    return {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


def test_the_table_has_the_keys_of_the_shipped_configurations() -> None:
    assert set(SHIPPED) <= set(TORCHTUNE.keys)
    assert len(TORCHTUNE_KEYS) == len(TORCHTUNE.keys)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_dropped_silently(file: Path) -> None:
    migration = migrate_file(str(file), TORCHTUNE, recipe_name="recipe.yaml", header_lines=())
    written = [name for name, _, _ in iter_values(read_source(str(file)), (), WHOLE_VALUE_KEYS)]
    assert sorted(fates(migration)) == sorted(written)
    shown = format_migration_report(migration, str(file))
    assert all(f": {key}: " in shown for key in written)
    assert migration.exit_code == 0


@pytest.mark.parametrize("key", TORCHTUNE_KEYS, ids=lambda key: key.path)
def test_a_key_is_carried_over_or_told_why_not(key: SourceKey, tmp_path: Path) -> None:
    data = small()
    holder = data
    *sections, last = key.path.split(".")
    for section in sections:
        holder = holder.setdefault(section, {})
    if not isinstance(holder.get(last), dict):
        holder.setdefault(last, "something")
    migration = migrated(data, tmp_path)
    told = {item.path: item for item in migration.items if item.entry}
    if key.path == "dataset":
        return
    item = told[key.path]
    assert "no such key" not in item.words
    assert item.targets if item.outcome in ("mapped", "changed") else item.words
    assert f": {key.path}: " in format_migration_report(migration, "config.yaml")


def test_held_out_data_are_told_where_they_go(tmp_path: Path) -> None:
    named = {"_component_": "torchtune.datasets.alpaca_dataset", "split": "train[95%:]"}
    numbers = {"run_val_every_n_steps": 25, "batch_size_val": 4, "save_every_n_steps": 100}
    told = fates(migrated(small(dataset_val=named, **numbers), tmp_path))
    assert told["dataset_val"] == ("refused", "name held-out data in validation.dataset")
    assert told["run_val_every_n_steps"] == ("manual", "validation.freq, in steps")
    assert told["batch_size_val"] == ("manual", "validation.local_batch_size")
    assert told["save_every_n_steps"][0] == "manual"
    unset = fates(migrated(small(dataset_val=None, run_val_every_n_steps=None), tmp_path))
    assert {unset[key][0] for key in ("dataset_val", "run_val_every_n_steps")} == {"unread"}


def test_what_a_part_of_a_split_leaves_over_is_held_out(tmp_path: Path) -> None:
    done = migrated(small(dataset={"split": "train[:95%]"}), tmp_path)
    assert recipe(done)["validation"]["holdout"] == 0.05
    assert "other records are held out" in fates(done)["dataset.split"][1]
    outcome, words = fates(migrated(small(dataset={"split": "train[5%:]"}), tmp_path))[
        "dataset.split"
    ]
    assert (outcome, words) == ("refused", "keep only these records in the files")


ANY = st.sampled_from(
    [None, True, 0, -1, 2.5, "word", "inf", [], ["a", 1], [{"b": 2}], {"_component_": ["x"]}, {}]
)


@settings(max_examples=40)
@given(
    chosen=st.dictionaries(
        st.sampled_from([key.path for key in TORCHTUNE_KEYS if key.path != "dataset"]),
        ANY,
        max_size=8,
    )
)
def test_any_value_gives_a_recipe_and_a_report(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]
) -> None:
    data = small()
    for path, value in chosen.items():
        holder = data
        *sections, last = path.split(".")
        for section in sections:
            holder = (
                holder[section]
                if isinstance(holder.get(section), dict)
                else holder.setdefault(section, {}) or {}
            )
        holder[last] = value
    migration = migrated(data, tmp_path_factory.mktemp("any"))
    assert isinstance(recipe(migration), dict)
    assert format_migration_report(migration, "config.yaml")


def test_unknown_keys_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    migration = migrated(small(bach_size=2, mine={"own": 1}), tmp_path)
    assert fates(migration)["bach_size"] == (
        "refused",
        "torchtune has no such key; did you mean 'batch_size'?",
    )
    assert fates(migration)["mine.own"] == ("refused", "torchtune has no such key")
    assert migration.exit_code == 1


def test_what_torchtune_has_by_default_is_written_out(tmp_path: Path) -> None:
    run = recipe(migrated(small(), tmp_path))
    assert run["lr_scheduler"] == {"name": "constant", "warmup_steps": 0}
    assert run["optimizer"] == {
        "name": "adamw",
        "lr": 1e-5,
        "weight_decay": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
    }
    assert run["training"]["max_norm"] is None
    assert run["metrics"]["log_freq"] == 1


def test_adapters_have_the_names_of_the_family(tmp_path: Path) -> None:
    chosen = {
        "lora_attn_modules": ["q_proj", "output_proj"],
        "apply_lora_to_mlp": True,
        "apply_lora_to_output": True,
        "use_dora": True,
    }
    own = recipe(
        migrated(
            small(model={"_component_": "torchtune.models.llama3_1.qlora_llama3_1_8b", **chosen}),
            tmp_path,
        )
    )
    (own_adapters,) = own["converters"]
    assert (own_adapters["name"], own_adapters["target_modules"]) == (
        "qlora",
        ["wq", "wo", "w1", "w2", "w3", "output"],
    )
    assert (own_adapters["magnitude"], own["checkpoint"]["adapters_only"]) == (True, True)
    of_qwen3 = {"_component_": "torchtune.models.qwen3.lora_qwen3_0_6b_instruct", **chosen}
    qwen3 = recipe(migrated(small(model=of_qwen3), tmp_path))
    assert (qwen3["model"]["name"], qwen3["model"]["flavor"]) == ("qwen3", "auto")
    assert qwen3["converters"][0]["target_modules"] == ["wq", "wo", "w1", "w2", "w3", "output"]
    other = recipe(
        migrated(
            small(model={"_component_": "torchtune.models.qwen2.lora_qwen2_7b", **chosen}), tmp_path
        )
    )
    assert other["model"]["name"] == "transformers"
    packed = migrated(
        small(
            model={"_component_": "torchtune.models.qwen2.lora_qwen2_7b", **chosen},
            dataset={"packed": True},
        ),
        tmp_path,
    )
    assert fates(packed)["dataset.packed"][0] == "refused"
    assert other["converters"][0]["target_modules"] == [
        "q_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
        "lm_head",
    ]


@pytest.mark.parametrize(
    ("dataset", "becomes"),
    [
        (
            {"_component_": "torchtune.datasets.alpaca_dataset"},
            {"name": "chat", "layout": "alpaca", "train_on": "all"},
        ),
        (
            {"_component_": "torchtune.datasets.instruct_dataset", "column_map": {"input": "q"}},
            {"name": "chat", "layout": "prompt_completion", "prompt_column": "q"},
        ),
        (
            {
                "_component_": "torchtune.datasets.text_completion_dataset",
                "packed": True,
                "column": "body",
            },
            {"name": "text", "column": "body", "packing": "documents"},
        ),
        ({"_component_": "torchtune.datasets.hh_rlhf_helpful_dataset"}, {"name": "preference"}),
    ],
    ids=["alpaca", "instruct", "text", "pairs"],
)
def test_data_sets_become_those_of_titanrun(
    dataset: dict[str, Any], becomes: dict[str, Any], tmp_path: Path
) -> None:
    found = recipe(migrated(small(dataset=dataset), tmp_path))["training"]["dataset"]
    assert found["path"] == "a.jsonl"
    assert becomes.items() <= found.items()


def test_steps_and_rows_are_counted_and_data_of_the_hub_keep_their_name(tmp_path: Path) -> None:
    hub = {"source": "owner/set", "data_files": None, "split": "part", "subset": "small"}
    run = recipe(
        migrated(
            small(epochs=3, max_steps_per_epoch=10, gradient_accumulation_steps=4, dataset=hub),
            tmp_path,
        )
    )["training"]
    assert (run["steps"], run["global_batch_size"]) == (30, 8)
    chosen = {key: run["dataset"].get(key) for key in ("repo", "path", "split", "subset")}
    assert chosen == {"repo": "owner/set", "path": None, "split": "part", "subset": "small"}
    assert "epochs" not in run


def test_references_are_put_in_and_a_circle_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "output_dir: ${base}/one\nbase: runs\nseed: ${batch_size}\nbatch_size: 4\ndevice: "
        "${nowhere}\n",
        encoding="utf-8",
    )
    run = recipe(migrate_file(str(file), TORCHTUNE, recipe_name="recipe.yaml", header_lines=()))
    assert (run["dump_folder"], run["debug"]["seed"]) == ("runs/one", 4)
    file.write_text("output_dir: ${base}\nbase: ${output_dir}\n", encoding="utf-8")
    with pytest.raises(ProblemsFound, match="refers to itself"):
        migrate_file(str(file), TORCHTUNE, recipe_name="recipe.yaml", header_lines=())


def test_a_section_that_is_null_is_none(tmp_path: Path) -> None:
    migration = migrated(small(lr_scheduler=None), tmp_path)
    assert fates(migration)["lr_scheduler"][0] == "mapped"
    assert recipe(migration)["lr_scheduler"]["name"] == "constant"


def test_comments_come_along(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "# whose it is\n\n# all of it\noptimizer:\n  # slow\n  lr: 1e-5  # fast\nseed: 3\n# "
        "the end\n",
        encoding="utf-8",
    )
    text = migrate_file(str(file), TORCHTUNE, recipe_name="recipe.yaml", header_lines=()).text
    assert text.startswith("# whose it is\n# the end\nversion: 1\n")
    assert "  # all of it\n  # slow\n  lr: 1e-05  # fast\n" in text
