"""Configurations of LLaMA-Factory, and what becomes of them.

The whole output for each setting in llamafactory/ lies beside it, written by
tools/write_reference.py.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source, read_source_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.llamafactory import KEYS, LLAMAFACTORY
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.program_detection import detect_file_program
from titanrun.recipe.migrate.yaml_entries import iter_values

FILES = sorted((Path(__file__).parent / "llamafactory").glob("*.yaml"))
SMALL: dict[str, Any] = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B",
    "stage": "sft",
    "finetuning_type": "full",
    "dataset": "mine",
    "learning_rate": 1e-5,
    "output_dir": "out",
}


def migrated(folder: Path, **changed: Any) -> Migration:
    file = folder / "config.yaml"
    file.write_text(to_yaml(SMALL | changed), encoding="utf-8")
    return migrate_file(str(file), LLAMAFACTORY, recipe_name="recipe.yaml", header_lines=())


def recipe(migration: Migration) -> Any:
    return to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml"))


def fates(migration: Migration) -> dict[str, tuple[str, str]]:
    return {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_dropped_silently(file: Path) -> None:
    assert detect_file_program(str(file)) == "llamafactory"
    migration = migrate_file(str(file), LLAMAFACTORY, recipe_name="recipe.yaml", header_lines=())
    written = [name for name, _, _ in iter_values(read_source(str(file)), (), KEYS)]
    assert sorted(fates(migration)) == sorted(written)
    shown = format_migration_report(migration, str(file))
    assert all(f": {key}: " in shown for key in written)
    assert migration.exit_code == 0


def test_every_field_of_training_arguments_has_an_outcome() -> None:
    fields = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    assert set(fields) <= set(KEYS)
    shared = ("learning_rate", "weight_decay", "adam_beta2", "max_grad_norm", "seed", "max_steps")
    shared += ("num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps")
    assert {name: KEYS[name].default for name in shared} == {
        name: fields[name].default for name in shared
    }


def test_every_key_is_carried_over_or_told_why_not(tmp_path: Path) -> None:
    chosen = [key for key in KEYS if key not in SMALL]
    for start in range(0, len(chosen), 60):
        names = chosen[start : start + 60]
        migration = migrated(tmp_path, **dict.fromkeys(names, "something"))
        told = {item.path: item for item in migration.items if item.entry}
        for name in names:
            assert "no such key" not in told[name].words
            has_target = told[name].outcome in ("mapped", "changed")
            assert told[name].targets if has_target else told[name].words, name


@pytest.mark.parametrize(
    ("changed", "loss"),
    [
        ({"pref_loss": "sigmoid"}, {"name": "dpo", "beta": 0.1}),
        ({"pref_beta": 0.3}, {"name": "dpo", "beta": 0.3}),
        ({"pref_loss": "hinge"}, {"name": "dpo", "variant": "hinge", "beta": 0.1}),
        ({"pref_loss": "ipo"}, {"name": "ipo", "beta": 0.1}),
        ({"pref_loss": "orpo"}, {"name": "orpo", "nll_on": "replies", "beta": 0.1}),
        ({"pref_loss": "simpo"}, {"name": "simpo", "beta": 0.1, "gamma": 0.5}),
        ({"pref_ftx": 0.5}, {"name": "dpo", "beta": 0.1, "nll_weight": 0.5}),
        ({"stage": "kto", "kto_rejected_weight": 2.0}, {"name": "kto", "undesirable_weight": 2.0}),
        ({"stage": "rm"}, {"name": "reward"}),
    ],
)
def test_losses_keep_their_settings(
    changed: dict[str, Any], loss: dict[str, Any], tmp_path: Path
) -> None:
    migration = migrated(tmp_path, **({"stage": "dpo"} | changed))
    found = recipe(migration)["loss"]
    found = {"name": found} if isinstance(found, str) else found
    defaults = {"beta": 0.1} if "beta" in loss and "beta" not in found else {}
    assert found | defaults == loss
    assert migration.exit_code == 0, migration.problems


@pytest.mark.parametrize(
    ("entry", "stage", "dataset"),
    [
        (
            {"file_name": "a.json"},
            "sft",
            {"name": "chat", "layout": "alpaca", "path": "data/a.json"},
        ),
        (
            {"file_name": "/data/chats/a.json"},
            "sft",
            {"name": "chat", "layout": "alpaca", "path": "/data/chats/a.json"},
        ),
        (
            {"file_name": "a.json", "columns": {"prompt": "instruction", "system": "sys"}},
            "sft",
            {"name": "chat", "layout": "alpaca", "system_column": "sys", "path": "data/a.json"},
        ),
        (
            {"file_name": "a.jsonl", "formatting": "sharegpt", "columns": {"system": "system"}},
            "sft",
            {
                "name": "chat",
                "layout": "sharegpt",
                "column": "conversations",
                "system_column": "system",
                "path": "data/a.jsonl",
            },
        ),
        (
            {"file_name": "a.jsonl", "formatting": "sharegpt"},
            "sft",
            {
                "name": "chat",
                "layout": "sharegpt",
                "column": "conversations",
                "path": "data/a.jsonl",
            },
        ),
        (
            {
                "hf_hub_url": "me/chats",
                "split": "train_sft",
                "formatting": "sharegpt",
                "columns": {"messages": "messages"},
                "tags": {"role_tag": "role", "content_tag": "content"},
            },
            "sft",
            {
                "name": "chat",
                "layout": "messages",
                "column": "messages",
                "repo": "me/chats",
                "split": "train_sft",
            },
        ),
        (
            {
                "file_name": "p.json",
                "ranking": True,
                "formatting": "sharegpt",
                "columns": {"messages": "conversations", "chosen": "good", "rejected": "bad"},
            },
            "dpo",
            {
                "name": "preference",
                "prompt_column": "conversations",
                "chosen_column": "good",
                "rejected_column": "bad",
                "path": "data/p.json",
            },
        ),
        (
            {"file_name": "p.json", "columns": {"prompt": "question", "system": "sys"}},
            "rm",
            {
                "name": "preference",
                "prompt_column": "question",
                "chosen_column": "chosen",
                "rejected_column": "rejected",
                "system_column": "sys",
                "path": "data/p.json",
            },
        ),
        (
            {"file_name": "k.json", "columns": {"kto_tag": "label"}},
            "kto",
            {
                "name": "labelled",
                "prompt_column": "instruction",
                "completion_column": "output",
                "label_column": "label",
                "path": "data/k.json",
            },
        ),
        (
            {"file_name": "k.json", "formatting": "sharegpt"},
            "kto",
            {
                "name": "labelled",
                "completion_column": "conversations",
                "label_column": "kto_tag",
                "path": "data/k.json",
            },
        ),
    ],
)
def test_dataset_info_describes_the_data(
    entry: dict[str, Any],
    stage: str,
    dataset: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    monkeypatch.chdir(tmp_path)
    migration = migrated(tmp_path, stage=stage)
    found = recipe(migration)["training"]["dataset"]
    assert {key: value for key, value in found.items() if key != "too_long"} == dataset
    assert "was not found" not in fates(migration)["dataset"][1]


@pytest.mark.parametrize(
    ("entry", "unread"),
    [
        ({"columns": {"history": "h"}}, "columns.history of its entry"),
        ({"columns": {"prompt": "q", "response": "a"}}, "columns.prompt, columns.response of"),
        ({"formatting": "sharegpt", "tags": {"role_tag": "who"}}, "tags.role_tag of its entry"),
        ({"num_samples": 5}, "num_samples of its entry"),
        ({"columns": {"tools": "tools"}}, "columns.tools of its entry"),
        ({"formatting": "sharegpt", "columns": {"tools": "t"}}, "columns.tools of its entry"),
    ],
)
def test_what_would_read_other_records_is_refused(
    entry: dict[str, Any], unread: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    monkeypatch.chdir(tmp_path)
    fate, words = fates(migrated(tmp_path, stage="sft"))["dataset"]
    assert fate == "refused" and words.startswith(unread)


def test_tools_are_read_where_conversations_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"formatting": "sharegpt", "columns": {"messages": "conversations", "tools": "tools"}}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dataset_info.json").write_text(json.dumps({"mine": entry}))
    monkeypatch.chdir(tmp_path)
    assert fates(migrated(tmp_path, stage="sft"))["dataset"][0] != "refused"


def test_adapters_have_twice_the_rank_as_alpha(tmp_path: Path) -> None:
    lora = {"finetuning_type": "lora", "lora_rank": 32, "lora_target": "q_proj, v_proj"}
    (converter,) = recipe(migrated(tmp_path, **lora))["converters"]
    assert converter == {
        "name": "lora",
        "rank": 32,
        "alpha": 64,
        "target_modules": ["wq", "wv"],
    }
    quantized = {**lora, "quantization_bit": 4, "lora_alpha": 8}
    (converter,) = recipe(migrated(tmp_path, **quantized))["converters"]
    assert (converter["name"], converter["alpha"]) == ("qlora", 8)


def test_validation_happens_as_often_as_before(tmp_path: Path) -> None:
    asked = {"val_size": 0.1, "eval_steps": 500, "per_device_eval_batch_size": 4}
    found = recipe(migrated(tmp_path, **asked))
    assert found["validation"] == {"holdout": 0.1, "freq": 500, "local_batch_size": 4}


def test_epochs_between_validations_are_left_to_the_user(tmp_path: Path) -> None:
    migration = migrated(tmp_path, val_size=0.1, eval_strategy="epoch", save_strategy="epoch")
    told = fates(migration)
    assert told["eval_strategy"] == ("manual", "validation.freq, in steps")
    assert told["save_strategy"] == ("manual", "checkpoint.interval, in steps or time")


def test_what_is_not_written_has_its_defaults(tmp_path: Path) -> None:
    found = recipe(migrated(tmp_path))
    training = found["training"]
    assert (training["epochs"], training["seq_len"], training["dtype"]) == (3, 2048, "float32")
    assert found["lr_scheduler"] == {"name": "polynomial", "power": 1.0, "warmup_steps": 0}
    assert found["activation_checkpoint"] == "full"


def test_what_cannot_be_done_is_refused_with_its_reason(tmp_path: Path) -> None:
    told = {
        "finetuning_type": ("oft", "supported: full and lora"),
        "deepspeed": ("ds_z0_config.json", "FSDP2"),
        "eval_dataset": ("one,other", "validation.dataset"),
        "fp16": (True, "mixed_precision_param: bfloat16"),
        "lr_scheduler_type": ("reduce_lr_on_plateau", "warmup_stable_decay"),
        "optim": ("lion_32bit", "no such optimizer"),
        "adapter_name_or_path": ("saves/a", "merge earlier adapters"),
        "learning_rat": (1, "did you mean 'learning_rate'?"),
    }
    found = fates(migrated(tmp_path, **{key: value for key, (value, _) in told.items()}))
    assert {
        key: (found[key][0], words in found[key][1]) for key, (_, words) in told.items()
    } == dict.fromkeys(told, ("refused", True))
