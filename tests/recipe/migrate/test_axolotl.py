"""Configurations of axolotl, and what becomes of them.

The whole output for each setting in axolotl/ lies beside it, written by tools/write_reference.py.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from titanrun.config.problems import SourceText
from titanrun.config.read_source import read_source, read_source_text
from titanrun.config.serialize import to_yaml
from titanrun.config.tree import to_plain_data
from titanrun.recipe.migrate.axolotl import AXOLOTL, KEYS
from titanrun.recipe.migrate.migration import Migration, migrate_file
from titanrun.recipe.migrate.migration_report import format_migration_report
from titanrun.recipe.migrate.yaml_entries import iter_values

FILES = sorted((Path(__file__).parent / "axolotl").glob("*.yaml"))
# the fields of axolotl 0.19's schemas at the top of a file, and those of Liger's and Cut Cross
# Entropy's plug-ins
FIELDS = (Path(__file__).parent / "axolotl" / "keys.txt").read_text(encoding="utf-8").split()
SMALL: dict[str, Any] = {
    "base_model": "meta-llama/Llama-3.1-8B",
    "datasets": {"path": "a.jsonl", "type": "chat_template"},
    "learning_rate": 1e-5,
    "sequence_len": 1024,
    "warmup_steps": 3,
    "seed": 1,
}


def migrated(data: dict[str, Any], folder: Path) -> Migration:
    file = folder / "config.yaml"
    file.write_text(to_yaml({**data, "datasets": [data["datasets"]]}), encoding="utf-8")
    return migrate_file(str(file), AXOLOTL, recipe_name="recipe.yaml", header_lines=())


def small(datasets: dict[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    return {**SMALL, **changed, "datasets": {**SMALL["datasets"], **(datasets or {})}}


def recipe(migration: Migration) -> Any:
    return to_plain_data(read_source_text(SourceText("recipe.yaml", migration.text), "yaml"))


def fates(migration: Migration) -> dict[str, tuple[str, str]]:
    return {
        item.entry.written_path: (item.outcome, item.words)
        for item in migration.items
        if item.entry
    }


def test_the_table_has_every_field_of_the_schemas_once() -> None:
    assert len(FIELDS) == len(set(FIELDS)) == 400
    assert [name for name in FIELDS if name not in KEYS] == []
    assert {path for path in KEYS if "." not in path} <= set(FIELDS)
    assert all(key.how or key.convert or key.outcome == "mapped" for key in KEYS.values())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_nothing_is_dropped_silently(file: Path) -> None:
    migration = migrate_file(str(file), AXOLOTL, recipe_name="recipe.yaml", header_lines=())
    written = [name for name, _, _ in iter_values(read_source(str(file)), (), KEYS)]
    assert sorted(fates(migration)) == sorted(written)
    shown = format_migration_report(migration, str(file))
    assert all(f": {key}: " in shown for key in written)
    assert migration.exit_code == 0


def test_every_key_is_carried_over_or_told_why_not(tmp_path: Path) -> None:
    for start in range(0, len(KEYS), 40):
        chosen = dict(list(KEYS.items())[start : start + 40])
        data = small()
        for path in chosen:
            holder, name = (
                (data["datasets"], path.partition(".")[2]) if "." in path else (data, path)
            )
            holder.setdefault(name, "something")
        migration = migrated(data, tmp_path)
        told = {item.path: item for item in migration.items if item.entry}
        shown = format_migration_report(migration, "config.yaml")
        for path in chosen:
            item = told[path]
            assert "no such key" not in item.words
            assert item.targets if item.outcome in ("mapped", "changed") else item.words, path
            assert f": {item.entry.written_path}: " in shown  # type: ignore[union-attr]


def test_aliases_of_the_schemas_are_the_keys_that_they_name(tmp_path: Path) -> None:
    data = small(
        model_type="LlamaForCausalLM", model_revision="v1", model_config={"a": {"b": 1}}, seed=2
    )
    migration = migrated({**data, "model_kwargs": {"use_cache": False}}, tmp_path)
    found = fates(migration)
    assert found["model_type"][0] == "unread" and "config.json" in found["model_type"][1]
    assert found["model_revision"][0] == "mapped"
    assert recipe(migration)["model"]["hf_assets_path"] == f"hub:{SMALL['base_model']}@v1"
    for alias in ("model_config", "model_kwargs"):
        assert found[alias] == ("refused", "weights are loaded from the folder unchanged")
    assert "no such key" not in format_migration_report(migration, "config.yaml")


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    migration = migrated(small(base_model="./here", model_revision="v1"), tmp_path)
    assert fates(migration)["model_revision"] == ("unread", "left out: a folder has no revisions")
    assert recipe(migration)["model"]["hf_assets_path"] == "./here"


PER_EPOCH = {"evals_per_epoch": 4, "saves_per_epoch": 2, "eval_sample_packing": False}


def test_what_depends_on_the_data_is_left_to_the_user_with_its_setting(tmp_path: Path) -> None:
    asked = small(**PER_EPOCH, sample_packing=True, val_set_size=0.1, save_strategy="epoch")
    migration = migrated(asked, tmp_path)
    found = fates(migration)
    settings = {
        "evals_per_epoch": "validation.freq: ",
        "saves_per_epoch": "checkpoint.interval: ",
        "eval_sample_packing": "validation.dataset, ",
        "save_strategy": "checkpoint.interval, ",
    }
    for key, setting in settings.items():
        assert found[key][0] == "manual" and found[key][1].startswith(setting)
    report = format_migration_report(migration, "config.yaml")
    head, _, rest = report.partition("\n")
    assert head.endswith(" 0 refused, 4 to set yourself")
    listed = rest.partition("not carried over: set it yourself:")[2].partition("\n\n")[0]
    assert all(f": {key}: " in listed for key in settings)
    assert "#   set checkpoint.interval: the steps of an epoch" in migration.text
    assert migration.exit_code == 0


def test_validation_without_held_out_data_has_no_effect(tmp_path: Path) -> None:
    unread = {"evals_per_epoch": 4, "eval_sample_packing": False, "eval_steps": 5}
    found = fates(migrated(small(**unread, eval_strategy="epoch", val_set_size=0), tmp_path))
    for key in (*unread, "eval_strategy"):
        assert found[key] == ("unread", "left out: nothing is held out")


def test_numbers_of_validation_are_mapped(tmp_path: Path) -> None:
    asked = small(val_set_size=0.1, eval_steps=5, eval_batch_size=3, eval_sequence_len=256)
    run = recipe(migrated(asked, tmp_path))
    assert run["validation"] == {
        "holdout": 0.1,
        "freq": 5,
        "local_batch_size": 3,
        "seq_len": 256,
    }


def test_two_steps_of_warmup_in_place_of_one_are_explained(tmp_path: Path) -> None:
    migration = migrated(small(warmup_steps=1), tmp_path)
    assert recipe(migration)["lr_scheduler"]["warmup_steps"] == 2
    assert fates(migration)["warmup_steps"] == ("changed", "axolotl makes 2 of a single step")


def test_unknown_keys_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    migration = migrated(small({"fields": "x"}, sequence_length=2, mine={"own": 1}), tmp_path)
    assert fates(migration)["sequence_length"] == (
        "refused",
        "axolotl has no such key; did you mean 'sequence_len'?",
    )
    assert fates(migration)["mine.own"] == ("refused", "axolotl has no such key")
    assert fates(migration)["datasets[0].fields"] == (
        "refused",
        "axolotl has no such key; did you mean 'datasets.field'?",
    )
    assert migration.exit_code == 1


def test_what_axolotl_has_by_default_is_written_out(tmp_path: Path) -> None:
    data = small()
    del data["seed"], data["sequence_len"]
    run = recipe(migrated(data, tmp_path))
    assert run["lr_scheduler"] == {"name": "cosine", "first_step": 0, "warmup_steps": 3}
    assert (
        run["optimizer"] == {"lr": 1e-5, "weight_decay": 0.0, "beta2": 0.999}
        or run["optimizer"]["weight_decay"] == 0.0
    )
    assert (
        run["optimizer"]["beta2"],
        run["debug"]["seed"],
        run["checkpoint"]["keep_latest_k"],
    ) == (0.999, 42, 4)
    assert run["training"]["seq_len"] == 512
    assert (
        run["training"]["epochs"],
        run["training"]["local_batch_size"],
        run["training"]["dtype"],
    ) == (1, 1, "bfloat16")


@pytest.mark.parametrize(
    ("name", "becomes"),
    [
        ("meta-llama/Meta-Llama-3.1-70B-Instruct", {"name": "llama3", "flavor": "70B"}),
        ("Qwen/Qwen3-4B", {"name": "qwen3", "flavor": "4B"}),
        ("meta-llama/Llama-3.2-1B", {"name": "llama3", "flavor": "auto"}),
        ("mistralai/Mistral-7B-v0.1", {"name": "transformers"}),
    ],
)
def test_the_family_is_known_by_the_name(
    name: str, becomes: dict[str, str], tmp_path: Path
) -> None:
    migration = migrated(small(base_model=name), tmp_path)
    assert recipe(migration)["model"] == {
        **becomes,
        "hf_assets_path": f"hub:{name}",
    }
    # before the model is here, nothing is wrong with the recipe
    assert migration.exit_code == 0


def test_a_folder_says_its_family_itself(tmp_path: Path) -> None:
    (tmp_path / "any").mkdir()
    (tmp_path / "any" / "config.json").write_text(
        json.dumps({"model_type": "qwen3"}), encoding="utf-8"
    )
    assert (
        recipe(migrated(small(base_model=str(tmp_path / "any")), tmp_path))["model"]["name"]
        == "qwen3"
    )


@pytest.mark.parametrize(
    ("changed", "converter"),
    [
        (
            {"adapter": "lora", "lora_target_modules": ["q_proj", "down_proj"]},
            {"name": "lora", "target_modules": ["wq", "w2"]},
        ),
        ({"adapter": "qlora", "load_in_4bit": True}, {"name": "qlora"}),
        ({"adapter": "lora", "peft_use_dora": True}, {"name": "lora", "magnitude": True}),
        ({"adapter": "lora", "load_in_8bit": True}, {"name": "qlora", "base": "int8"}),
    ],
    ids=["lora", "qlora", "dora", "int8"],
)
def test_adapters(changed: dict[str, Any], converter: dict[str, Any], tmp_path: Path) -> None:
    migration = migrated(small(**changed, lora_r=4, lora_alpha=8), tmp_path)
    (found,) = recipe(migration)["converters"]
    assert {**converter, "rank": 4, "alpha": 8}.items() <= found.items()
    assert (migration.exit_code, recipe(migration)["checkpoint"]["adapters_only"]) == (0, True)
    assert "dtype" not in recipe(migration)["training"]


@pytest.mark.parametrize(
    ("datasets", "becomes"),
    [
        ({"type": "alpaca"}, {"name": "chat", "layout": "alpaca"}),
        (
            {"type": "completion", "field": "body"},
            {"name": "text", "column": "body", "packing": None},
        ),
        (
            {"path": "owner/set", "split": "train_sft", "name": "small", "revision": "a" * 40},
            {
                "name": "chat",
                "repo": "owner/set",
                "split": "train_sft",
                "subset": "small",
                "revision": "a" * 40,
            },
        ),
        ({"path": "owner/set", "revision": "main"}, {"name": "chat", "repo": "owner/set"}),
        ({"path": "a.jsonl", "split": "train"}, {"name": "chat", "path": "a.jsonl"}),
        ({"path": "json", "data_files": ["b.jsonl"]}, {"name": "chat", "path": "b.jsonl"}),
    ],
    ids=["alpaca", "completion", "hub", "branch", "file", "files"],
)
def test_data_sets_become_those_of_titanrun(
    datasets: dict[str, Any], becomes: dict[str, Any], tmp_path: Path
) -> None:
    found = recipe(migrated(small(datasets), tmp_path))["training"]["dataset"]
    assert becomes.items() <= found.items()


@pytest.mark.parametrize(
    ("changed", "loss"),
    [
        ({"rl": "dpo", "rl_beta": 0.2}, {"name": "dpo", "beta": 0.2}),
        ({"rl": "ipo", "rl_beta": 0.2}, {"name": "ipo", "beta": 0.2}),
        (
            {"rl": "dpo", "rl_beta": 0.2, "dpo_loss_type": "hinge", "dpo_label_smoothing": 0.1},
            {"name": "dpo", "beta": 0.2, "variant": "hinge"},
        ),
        (
            {"rl": "dpo", "dpo_loss_type": ["robust"], "dpo_label_smoothing": 0.1},
            {"name": "dpo", "variant": "robust", "label_smoothing": 0.1},
        ),
        (
            {"rl": "dpo", "rl_beta": 0.2, "dpo_loss_type": ["ipo"], "dpo_label_smoothing": 0.1},
            {"name": "ipo", "beta": 0.2},
        ),
        ({"rl": "orpo", "orpo_alpha": 0.3, "rl_beta": 0.2}, {"name": "orpo", "beta": 0.3}),
        (
            {"rl": "simpo", "simpo_gamma": 0.7},
            {"name": "simpo", "beta": 0.1, "gamma": 0.7, "nll_weight": 1.0},
        ),
        (
            {"rl": "simpo", "rl_beta": 2.5, "cpo_alpha": 0.0},
            {"name": "simpo", "beta": 2.5, "gamma": 0.5, "nll_weight": 0.0},
        ),
    ],
)
def test_losses_of_pairs_keep_their_settings(
    changed: dict[str, Any], loss: dict[str, Any], tmp_path: Path
) -> None:
    written = recipe(migrated(small({"type": "chat_template.default"}, **changed), tmp_path))
    assert written["loss"] == loss
    assert written["training"]["dataset"]["name"] == "preference"


@pytest.mark.parametrize(
    ("kinds", "told"),
    [
        (["exo_pair"], "no loss exo_pair of pairs: titanrun has sigmoid, ipo, hinge"),
        (["sigmoid", "sft"], "no sum of several losses"),
    ],
)
def test_losses_of_dpo_that_titanrun_lacks_are_refused(
    kinds: list[str], told: str, tmp_path: Path
) -> None:
    data = small({"type": "chat_template.default"}, rl="dpo", dpo_loss_type=kinds)
    outcome, why = fates(migrated(data, tmp_path))["dpo_loss_type"]
    assert outcome == "refused"
    assert told in why


def test_labelled_replies_and_their_loss_are_read(tmp_path: Path) -> None:
    weights = {"kto_desirable_weight": 1.2, "kto_undesirable_weight": 0.8}
    data = small({"type": "chatml.intel"}, rl="kto", rl_beta=0.2, **weights)
    written = recipe(migrated(data, tmp_path))
    assert written["loss"] == {
        "name": "kto",
        "beta": 0.2,
        "desirable_weight": 1.2,
        "undesirable_weight": 0.8,
    }
    assert written["training"]["dataset"]["name"] == "labelled"
    assert written["training"]["dataset"]["prompt_column"] == "question"
    other = migrated({**data, **small({"type": "chat_template.default"})}, tmp_path)
    assert recipe(other)["training"]["dataset"]["name"] == "labelled"
    assert "format of labelled replies" in fates(other)["datasets[0].type"][1]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("chatml.intel", {"prompt_column": "question", "system_column": "system"}),
        ("llama3.icr", {"prompt_column": "input", "system_column": "system"}),
        ("chatml.ultra", {"system_column": "system"}),
        ("chatml.prompt_pairs", {"system_column": "system"}),
        (
            "chatml.argilla",
            {
                "prompt_column": "instruction",
                "chosen_column": "chosen_response",
                "rejected_column": "rejected_response",
                "system_column": "system",
            },
        ),
        ("chatml.argilla_chat", {}),
        ("chat_template.argilla_chat", {}),
    ],
)
def test_formats_of_pairs_become_columns(
    kind: str, columns: dict[str, str], tmp_path: Path
) -> None:
    data = small({"type": kind, "path": "owner/pairs"}, rl="dpo")
    migration = migrated(data, tmp_path)
    assert migration.exit_code == 0
    run = recipe(migration)
    expected = {"name": "preference", "repo": "owner/pairs", **columns}
    assert run["training"]["dataset"] == expected
    template = kind.partition(".")[0]
    written = run.get("tokenizer", {}).get("chat_template")
    assert written == (template if template in ("chatml", "llama3") else None)


def test_whole_conversations_have_another_name_for_orpo(tmp_path: Path) -> None:
    data = small({"type": "chat_template.argilla", "path": "owner/pairs"}, rl="orpo")
    migration = migrated(data, tmp_path)
    assert migration.exit_code == 0
    expected = {"name": "preference", "repo": "owner/pairs"}
    assert recipe(migration)["training"]["dataset"] == expected
    other = fates(migrated({**data, "rl": "dpo"}, tmp_path))
    assert other["datasets[0].type"][0] == "refused"


def test_plugins_that_only_bring_kernels_are_left_out(tmp_path: Path) -> None:
    names = ["liger.LigerPlugin", "cut_cross_entropy.CutCrossEntropyPlugin"]
    known = [f"axolotl.integrations.{name}" for name in names]
    assert fates(migrated(small(plugins=known), tmp_path))["plugins"] == (
        "unread",
        "left out: each model family chooses its kernels",
    )
    mixed = fates(migrated(small(plugins=[*known, "mine.Plugin"]), tmp_path))
    assert mixed["plugins"][0] == "refused"


@pytest.mark.parametrize(
    ("roles", "role_field", "outcome"),
    [
        ({"user": ["user"], "assistant": ["assistant"]}, "role", "unread"),
        ({"user": ["human", "user"], "assistant": ["gpt"]}, "from", "unread"),
        ({"assistant": ["gpt"]}, "role", "refused"),
        ({"assistant": ["gpt", "model"]}, "from", "unread"),
        ({"assistant": ["model"]}, "from", "refused"),
        ({"bot": ["bot"]}, "role", "refused"),
    ],
)
def test_roles_that_keep_their_names_are_left_out(
    roles: dict[str, Any], role_field: str, outcome: str, tmp_path: Path
) -> None:
    data = small({"roles": roles, "message_field_role": role_field})
    told, words = fates(migrated(data, tmp_path))["datasets[0].roles"][:2]
    assert told == outcome
    # a further name may occur in the files
    assert ("rename them" in words) is ("model" in str(roles) or told == "refused")


def test_a_template_that_the_format_replaces_is_kept_and_told(tmp_path: Path) -> None:
    asked = small({"type": "chatml.intel"}, rl="dpo", chat_template="llama3")
    migration = migrated(asked, tmp_path)
    assert recipe(migration)["tokenizer"] == {"chat_template": "llama3"}
    assert fates(migration)["datasets[0].type"] == (
        "changed",
        "formatted by chat_template, which axolotl replaces by chatml",
    )


@pytest.mark.parametrize("has_system", [True, False])
def test_a_system_text_is_read_where_a_file_has_one(has_system: bool, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    system = {"system": ""} if has_system else {}
    file.write_text(json.dumps({**system, "question": "a", "chosen": "b", "rejected": "c"}))
    run = recipe(migrated(small({"type": "chatml.intel", "path": str(file)}, rl="dpo"), tmp_path))
    assert ("system_column" in run["training"]["dataset"]) == has_system


@pytest.mark.parametrize(
    ("record", "outcome", "words"),
    [
        ({"messages": [], "system": "Be brief."}, "changed", "an empty text in column system"),
        ({"messages": []}, "mapped", ""),
        (None, "changed", "axolotl reads a column `system`"),
    ],
)
def test_a_chat_template_has_the_system_text_beside_the_messages(
    record: dict[str, Any] | None, outcome: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "chats.jsonl"
    if record is not None:
        file.write_text(json.dumps(record))
    migration = migrated(small({"path": str(file)}), tmp_path)
    is_set = record is not None and "system" in record
    dataset = recipe(migration)["training"]["dataset"]
    assert dataset.get("system_column") == ("system" if is_set else None)
    found, told = fates(migration)["datasets[0].type"]
    assert found == outcome and told.startswith(words)


@pytest.mark.parametrize(
    ("rl", "name"), [("dpo", "preference"), (None, "chat")], ids=["pairs", "conversations"]
)
def test_an_unknown_format_keeps_the_name_of_the_dataset(
    rl: str | None, name: str, tmp_path: Path
) -> None:
    migration = migrated(small({"type": "chatml.unknown"}, rl=rl), tmp_path)
    assert recipe(migration)["training"]["dataset"]["name"] == name
    assert fates(migration)["datasets[0].type"][0] == "refused"
    assert [problem.severity for problem in migration.problems] == ["warning"]


def test_what_cannot_be_done_is_refused_with_its_reason(tmp_path: Path) -> None:
    told = {
        "val_set_size": (0.9, "a share up to 0.5"),
        "test_datasets": ([{"path": "a.jsonl"}, {"path": "b.jsonl"}], "validation.dataset"),
        "lora_modules_to_save": (["lm_head"], "add output to target_modules"),
        "rl": ("grpo", "no loss of preferences"),
        "plugins": (["axolotl.integrations.spectrum.SpectrumPlugin"], "recipes import nothing"),
        "liger_use_token_scaling": (True, "tokens by their probability"),
        "fp16": (True, "fp32 or bf16"),
        "optimizer": ("lion_8bit", "no such optimizer"),
        "num_epochs": ("many", "not a number of epochs"),
        "deepspeed": ("ds.json", "FSDP2"),
    }
    data = small(**{key: value for key, (value, _) in told.items()})
    del data["warmup_steps"]
    found = fates(migrated(data, tmp_path))
    assert {
        key: (found[key][0], words in found[key][1]) for key, (_, words) in told.items()
    } == dict.fromkeys(told, ("refused", True))


@pytest.mark.parametrize(
    ("file", "outcome", "settings"),
    [
        ("deepspeed_configs/zero1.json", "changed", {"reshard": "never"}),
        ("deepspeed_configs/zero3_bf16.json", "unread", {}),
        ("deepspeed_configs/zero3_bf16_cpuoffload_all.json", "changed", {"offload": True}),
    ],
)
def test_stages_of_zero_are_fsdp2(
    file: str, outcome: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    migration = migrated(small(deepspeed=file), tmp_path)
    found = recipe(migration)
    assert fates(migration)["deepspeed"][0] == outcome
    reshard = found.get("parallelism", {}).get("fsdp_reshard_after_forward")
    assert reshard == settings.get("reshard")
    assert found["training"].get("enable_cpu_offload") == settings.get("offload")


def test_held_out_files_are_validated(tmp_path: Path) -> None:
    held_out = {"path": "held.jsonl", "type": "chat_template", "field_messages": "turns"}
    migration = migrated(small(test_datasets=[held_out], eval_steps=5), tmp_path)
    section = recipe(migration)["validation"]
    assert (section["enable"], section["freq"]) == (True, 5)
    named = {"name": "chat", "path": "held.jsonl", "layout": "messages", "column": "turns"}
    assert section["dataset"] == named
    assert fates(migration)["test_datasets"][0] == "changed"


def test_the_name_of_a_run_and_its_best_checkpoint_are_kept(tmp_path: Path) -> None:
    asked = {"wandb_name": "mine", "load_best_model_at_end": True}
    found = recipe(migrated(small(val_set_size=0.1, **asked), tmp_path))
    assert (found["name"], found["checkpoint"]["keep_best"]) == ("mine", 1)
    unread = migrated(small(**asked), tmp_path)
    assert fates(unread)["load_best_model_at_end"][0] == "unread"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("sharegpt", {"layout": "sharegpt", "column": "conversations"}),
        (
            "alpaca_chat.load_qa",
            {
                "layout": "prompt_completion",
                "prompt_column": "question",
                "completion_column": "answer",
            },
        ),
        (
            {"field_instruction": "ask", "field_output": "say", "field_system": "system"},
            {
                "layout": "prompt_completion",
                "prompt_column": "ask",
                "completion_column": "say",
                "system_column": "system",
            },
        ),
        ({"field_instruction": "instruction", "field_input": "input"}, {"layout": "alpaca"}),
        ({"field_instruction": "ask", "field_input": "input"}, None),
    ],
)
def test_prompts_with_one_reply_are_read_from_their_columns(
    kind: Any, settings: dict[str, str] | None, tmp_path: Path
) -> None:
    migration = migrated(small({"type": kind}), tmp_path)
    found = recipe(migration)["training"]["dataset"]
    if settings is None:
        assert fates(migration)["datasets[0].type"][0] == "refused"
        return
    assert {"name": "chat", "path": "a.jsonl", **settings}.items() <= found.items()


def test_a_length_that_text_does_not_read_is_left_out(tmp_path: Path) -> None:
    other = {"base_model": "mistralai/Mistral-7B-v0.1", "sample_packing": True}
    migration = migrated(small({"type": "completion"}, **other), tmp_path)
    assert "too_long" not in recipe(migration)["training"]["dataset"]
    assert not [one for one in migration.problems if one.code == "no-effect"]


@pytest.mark.parametrize(("asked", "epochs"), [(0.5, 1), (1.5, 2), (2.0, 2)])
def test_parts_of_epochs_are_rounded_up(asked: float, epochs: int, tmp_path: Path) -> None:
    migration = migrated(small(num_epochs=asked), tmp_path)
    assert recipe(migration)["training"]["epochs"] == epochs
    fate, words = fates(migration)["num_epochs"][:2]
    is_whole = asked == epochs
    assert fate == ("mapped" if is_whole else "changed") and ("rounded up" in words) is not is_whole


def test_a_warmup_of_epochs_keeps_its_share(tmp_path: Path) -> None:
    data = small(warmup_ratio=0.05, num_epochs=2)
    del data["warmup_steps"]
    assert recipe(migrated(data, tmp_path))["lr_scheduler"]["warmup_ratio"] == 0.05
    # max_steps is a number: the steps that axolotl computes
    data["max_steps"] = 70
    assert recipe(migrated(data, tmp_path))["lr_scheduler"]["warmup_steps"] == 3


@pytest.mark.parametrize("size", [0.05, 500])
def test_records_are_held_out_where_axolotl_does(size: float, tmp_path: Path) -> None:
    done = migrated(small(val_set_size=size), tmp_path)
    assert recipe(done)["validation"]["holdout"] == size
    assert "other records are held out" in fates(done)["val_set_size"][1]
    assert "holdout" not in recipe(migrated(small(val_set_size=0), tmp_path)).get("validation", {})


ANY = st.sampled_from(
    [None, True, 0, -1, 2.5, "word", "inf", [], ["a", 1], [{"b": 2}], {"x": ["y"]}, {}]
)


@settings(max_examples=40)
@given(chosen=st.dictionaries(st.sampled_from(sorted(KEYS)), ANY, max_size=8))
def test_any_value_gives_a_recipe_and_a_report(
    tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, Any]
) -> None:
    data = small()
    for path, value in chosen.items():
        holder, name = (data["datasets"], path.partition(".")[2]) if "." in path else (data, path)
        holder[name] = value
    migration = migrated(data, tmp_path_factory.mktemp("any"))
    assert isinstance(recipe(migration), dict)
    assert format_migration_report(migration, "config.yaml")


def test_the_report_counts_what_it_lists(tmp_path: Path) -> None:
    written = {key: value for key, value in SMALL.items() if key not in ("warmup_steps", "seed")}
    migration = migrated({**written, "lerning_rate": 1e-4}, tmp_path)
    report = format_migration_report(migration, "config.yaml")
    head, _, rest = report.partition("\n")
    listed = rest.partition("changed in meaning:")[2].partition("\n\n")[0]
    counted = re.findall(r"(\d+) (?:defaults? )?changed in meaning", head)
    assert sum(map(int, counted)) == len(re.findall(r"^  (?:line|default)", listed, re.M)) > 0
    assert "\nrefused:\n  axolotl has no such key; did you mean 'learning_rate'?:\n" in report


def test_a_schedule_stays_where_a_part_of_it_has_no_effect(tmp_path: Path) -> None:
    run = recipe(migrated(small(lr_scheduler="linear", warmup_steps=0), tmp_path))
    assert run["lr_scheduler"] == {"name": "polynomial", "power": 1.0, "warmup_steps": 0}


def test_tokens_that_end_a_turn_stop_and_one_for_padding_is_left_out(tmp_path: Path) -> None:
    asked = small(eot_tokens=["<|im_end|>"], special_tokens={"pad_token": "<pad>"})
    migration = migrated(asked, tmp_path)
    assert recipe(migration)["tokenizer"]["stop_tokens"] == ["<|im_end|>"]
    assert fates(migration)["special_tokens"][0] == "unread"
    other = migrated(small(special_tokens={"eos_token": "<|im_end|>"}), tmp_path)
    assert fates(other)["special_tokens"][0] == "refused"
