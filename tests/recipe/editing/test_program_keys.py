"""Keys of axolotl, LLaMA-Factory and TRL in a recipe: each is told the setting that does it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from titanrun.cli.main import run_and_flush
from titanrun.config.problems import Problem
from titanrun.recipe.editing.component_meanings import (
    ALL_LINEAR_KEYS,
    SECTION_MEANINGS,
    format_section_meaning,
)
from titanrun.recipe.migrate.foreign_files import choose_trl_kind
from titanrun.recipe.migrate.program_detection import PROGRAMS, detect_program
from titanrun.recipe.migrate.program_hints import describe_program_key, describe_program_target
from titanrun.recipe.resolving.validation_levels import validate_file

SECTIONS = {
    "kind": "sft",
    "model": {"name": "llama3", "flavor": "debugmodel"},
    "tokenizer": "tiny",
    "optimizer": {"name": "adamw"},
    "training": {"dataset": {"name": "chat", "path": "chats.jsonl"}, "steps": 4},
}
AXOLOTL = """\
version: 1
base_model: Qwen/Qwen3-0.6B
datasets: [{path: chats.jsonl, type: chat_template}]
sample_packing: true
learning_rate: 1.0e-4
num_epochs: 1
"""
LLAMAFACTORY = """\
version: 1
model_name_or_path: Qwen/Qwen3-0.6B
stage: sft
dataset: chats
per_device_train_batch_size: 2
"""
PACKED = (
    "write training.dataset.packing: best_fit, of dataset chat; titanrun's own models take "
    "model.attention.mask: block_causal with it"
)
LORA = "adapters are a converter: write converters: [{name: lora, rank: 8, alpha: 16}]"
ALL_LINEAR = f"{LORA}; without target_modules all linear modules but the output head have adapters"
KERNELS = (
    "remove it: each model family chooses its kernels; model.attention.backend takes sdpa, flex "
    "or varlen"
)
HINTS = {
    "base_model: Qwen/Qwen3-0.6B": (
        'write model: {name: qwen3, flavor: "0.6B", hf_assets_path: "hub:Qwen/Qwen3-0.6B"}'
    ),
    "model_name_or_path: ./folder": (
        'write model: {name: transformers, hf_assets_path: "./folder"}'
    ),
    "lora_target_linear: true": ALL_LINEAR,
    "lora_target: all": ALL_LINEAR,
    "lora_target: 'wq,wv'": (
        "adapters are a converter: write converters: [{name: lora, target_modules: [wq, wv]}]"
    ),
    "load_in_4bit: false": "remove it: weights are quantized only by the converter qlora",
    "finetuning_type: full": "remove it: without adapters all weights are trained",
    "sample_packing: true": PACKED,
    "neat_packing: true": PACKED,
    "flash_attention: true": KERNELS,
    "attn_implementation: sdpa": KERNELS,
    "attn_implementation: flash_attention_2": KERNELS,
    "_attn_implementation: flex_attention": "write model.attention.backend: flex",
    "use_flash_attention_2: true": KERNELS,
    "gradient_checkpointing: true": "write activation_checkpoint: full",
    "disable_gradient_checkpointing: true": "write activation_checkpoint: none",
    "learning_rate: 1.0e-4": "'learning_rate' is optimizer.lr here",
    "adam_beta1: 0.9": "'adam_beta1' is optimizer.beta1 here",
    "weight_decay: 0.1": "'weight_decay' belongs in optimizer",
    "report_to: wandb": "write metrics.trackers: [wandb]",
    "report_to: [wandb, csv]": "write metrics.trackers: [wandb, csv]",
    "report_to: none": "remove it: without metrics.trackers only metrics.jsonl is written",
    "report_to: swanlab": (
        "write metrics.trackers: [csv]; the trackers are csv, mlflow, tensorboard, trackio and "
        "wandb"
    ),
    "loss_type: sigmoid": "write loss: dpo, and training.dataset: {name: preference, path: FILE}",
    "loss_type: [hinge]": (
        "write loss: {name: dpo, variant: hinge}, and training.dataset: {name: preference, path: "
        "FILE}"
    ),
    "loss_type: apo_zero_unpaired": (
        "write loss: {name: kto, variant: apo_zero}, and training.dataset: {name: labelled, path: "
        "FILE}"
    ),
    "loss_type: simpo": "write loss: simpo, and training.dataset: {name: preference, path: FILE}",
    "loss_type: nll": "write loss: cross_entropy",
    "loss_type: [nll]": "write loss: cross_entropy",
    "dataset_name: trl-lib/Capybara": "write training.dataset.repo: trl-lib/Capybara",
    "dataset_name: ../chats.jsonl": 'write training.dataset.path: "../chats.jsonl"',
    "loss_type: chunked_nll": "write loss: chunked_cross_entropy",
    "pref_loss: orpo": (
        "write loss: {name: orpo, nll_on: replies}, and training.dataset: {name: preference, "
        "path: FILE}"
    ),
    "eval_steps: 10": "write validation.freq: 10",
    "max_samples: 100": "remove it: keep only so many records in the files of training.dataset",
    "max_eval_samples: 100": "write validation.steps: 13, in batches of 8 a rank",
    "seed: 42": "write debug.seed: 42",
    "wandb_project: mine": "write metrics.trackers: [{name: wandb, project: mine}]",
    "chat_template: qwen_25": "write tokenizer.chat_template: qwen2_5",
    "train_on_inputs: true": "write training.dataset.train_on: all, of dataset chat",
    "stage: sft": "write kind: sft",
    "special_tokens: {pad_token: x}": ("remove it: padding counts nothing, whatever its token is"),
    "saves_per_epoch: 1": (
        "set checkpoint.interval: the steps of an epoch, which depend on the data, divided by "
        "this number"
    ),
    "neftune_noise_alpha: 5": (
        "there is no 'neftune_noise_alpha' here: no noise is added to embeddings"
    ),
    "s2_attention: true": "there is no 's2_attention' here: positions follow the text",
    "hub_model_id: me/mine": "remove it: titanrun push uploads a finished run",
    "assistant_only_loss: true": "write training.dataset.train_on: replies, of dataset chat",
    "num_generations: 8": "'num_generations' is rl.rollout.samples_per_prompt here",
}
FULL = (
    "remove it: ZeRO stage 3 is what FSDP2, the default, does; "
    "parallelism.data_parallel_shard_degree sets the number of ranks"
)
SHARDED = (
    "remove it: FSDP2, the default, shards weights, gradients and optimizer states; "
    "parallelism.data_parallel_shard_degree sets the number of ranks"
)
GATHERED = (
    "write parallelism.fsdp_reshard_after_forward: never, with which FSDP2 keeps gathered weights "
    "until the backward pass"
)
REPLICATED = (
    "set parallelism.data_parallel_replicate_degree to the number of ranks: each holds the whole "
    "model"
)
SHARDING_HINTS = {
    "deepspeed: ds_z3.json": FULL,
    "deepspeed: zero2.json": GATHERED,
    "deepspeed: ds_z3_offload.json": f"{FULL}; training.enable_cpu_offload: true offloads",
    "deepspeed: configs/mine.json": SHARDED,
    "deepspeed: {zero_optimization: {stage: 2}}": GATHERED,
    "deepspeed: false": "remove it: ranks share the model as section parallelism says",
    "zero_stage: 3": FULL,
    "zero_stage: 0": REPLICATED,
    "zero3: true": FULL,
    "zero_optimization: {stage: 1}": GATHERED,
    "sharding_strategy: SHARD_GRAD_OP": GATHERED,
    "strategy: deepspeed_stage_2": GATHERED,
    "strategy: ddp": REPLICATED,
    "distributed_type: FSDP": SHARDED,
    "fsdp_config: {offload_params: true}": "write training.enable_cpu_offload: true",
    "fsdp_config: {reshard_after_forward: false}": (
        "write parallelism.fsdp_reshard_after_forward: never"
    ),
    "cpu_offload: true": "write training.enable_cpu_offload: true",
    "offload_params: false": "remove it: nothing is offloaded to the CPU by default",
}
OF_TORCHTITAN = {("training", "seed: 42"): "training.seed of torchtitan is debug.seed here"}
OF_TRAINING = {
    "micro_batch_size: 2": "local_batch_size",
    "per_device_train_batch_size: 2": "local_batch_size",
    "num_epochs: 1": "epochs",
    "num_train_epochs: 1": "epochs",
    "max_seq_length: 64": "seq_len",
    "sequence_len: 64": "seq_len",
    "cutoff_len: 64": "seq_len",
    "max_length: 64": "seq_len",
}


def find_unknown_keys(folder: Path, text: str) -> list[Problem]:
    """Return the problems of unknown keys and names in a recipe."""
    file = folder / "mine.yaml"
    file.write_text(text)
    found = validate_file(str(file), [], level="rules", environment={}).problems
    return [one for one in found if one.code.startswith("unknown")]


def write_recipe(entry: str, section: str = "") -> str:
    """Return a recipe with one more entry, at the top level or in a section."""
    own = yaml.safe_load(entry)
    inside = {section: {**SECTIONS[section], **own}} if section else own
    return yaml.safe_dump({"version": 1, **SECTIONS, **inside}, sort_keys=False)


@pytest.mark.parametrize("entry", HINTS)
def test_a_key_of_another_program_is_told_what_does_it(entry: str, tmp_path: Path) -> None:
    for section in ("", "training"):
        (found,) = find_unknown_keys(tmp_path, write_recipe(entry, section))
        assert found.hint in (HINTS[entry], OF_TORCHTITAN.get((section, entry)))
        assert found.fix is None


@pytest.mark.parametrize("entry", SHARDING_HINTS)
def test_a_key_that_shards_a_model_is_told_by_its_value(entry: str, tmp_path: Path) -> None:
    for section in ("", "training"):
        (found,) = find_unknown_keys(tmp_path, write_recipe(entry, section))
        assert (found.hint, found.fix) == (SHARDING_HINTS[entry], None)
    recipe = f"{write_recipe('seed: 1').replace('seed: 1', '')}parallelism: {{{entry}}}\n"
    (found,) = find_unknown_keys(tmp_path, recipe)
    assert found.hint == SHARDING_HINTS[entry]


@pytest.mark.parametrize(
    ("dataset", "hint"),
    [
        ("{type: sharegpt, path: x.jsonl}", "write {name: chat, layout: sharegpt, path: FILE}"),
        ("{name: chat, type: sharegpt, path: x.jsonl}", "write layout: sharegpt"),
        ("{name: chat, formatting: alpaca, path: x.jsonl}", "write layout: alpaca"),
        ("{name: chat, type: chat_template, path: x.jsonl}", "write layout: messages"),
        ("{type: chat, path: x.jsonl}", "did you mean 'name'?"),
        (
            "{name: text, type: sharegpt, path: x.jsonl}",
            "did you mean 'name', which is given too, in line 2?",
        ),
    ],
)
def test_the_layout_of_conversations_is_told_by_its_name(
    dataset: str, hint: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"version: 1\ntraining: {{steps: 4, dataset: {dataset}}}\ntokenizer: tiny\n"
        "model: {name: llama3, flavor: debugmodel}\n"
    )
    (found,) = validate_file(str(file), [], level="rules", environment={}).problems
    assert (found.hint, found.fix) == (hint, None)


@pytest.mark.parametrize("entry", OF_TRAINING)
def test_a_key_with_the_same_meaning_is_named(entry: str, tmp_path: Path) -> None:
    (above,) = find_unknown_keys(tmp_path, write_recipe(entry))
    key = entry.partition(":")[0]
    assert above.hint == f"'{key}' is training.{OF_TRAINING[entry]} here"
    (inside,) = find_unknown_keys(tmp_path, write_recipe(entry, "training"))
    assert inside.suggestion == OF_TRAINING[entry]
    # TRL's max_length may also be that of prompts
    assert (inside.fix is not None) == (entry != "max_length: 64")


@pytest.mark.parametrize("entry", [entry for entry, hint in HINTS.items() if "write" in hint])
def test_what_is_to_be_written_is_valid(entry: str, tmp_path: Path) -> None:
    written = (
        HINTS[entry]
        .partition("write ")[2]
        .partition(";")[0]
        .partition(", of")[0]
        .partition(", in")[0]
    )
    path, _, value = written.partition(", and ")[0].partition(": ")
    data = {"version": 1, **SECTIONS}
    *above, last = path.split(".")
    holder = data
    for step in above:
        kept = holder.get(step, {})
        holder[step] = {"name": "huggingface", "path": "."} if step == "tokenizer" else {**kept}
        holder = holder[step]
    holder[last] = yaml.safe_load(value)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    found = validate_file(str(tmp_path / "mine.yaml"), [], level="schema", environment={}).problems
    assert [one.message for one in found if one.severity == "error"] == []


FOLDER = "{name: NAME, path: FOLDER}, with files of the records of all datasets in the folder"
REPLIES = [
    ("dpo", "max_samples: 9", "{repo: me/two}", 'split: "train[:9]"'),
    ("dpo", "max_train_samples: 9", "{repo: me/two, split: 'a[2:]+b'}", 'split: "a[:9]"'),
    ("dpo", "max_samples: 9", "{path: a.jsonl}", "remove it: keep only so many records in"),
    ("dpo", "max_samples: 9", "{repo: me/two, streaming: true}", "remove it: keep only so many"),
    ("dpo", "datasets: [{path: a}, {path: b}]", "{path: a.jsonl}", FOLDER),
    ("kto", "datasets: [{path: a}, {path: b}]", "{path: a.jsonl}", FOLDER),
    ("kto", "datasets: [{path: a}]", "{path: a.jsonl}", "{name: NAME, path: FILE}, or repo:"),
]


@pytest.mark.parametrize(("loss", "entry", "place", "hint"), REPLIES)
def test_replies_that_are_compared_are_not_told_to_be_a_mixture(
    loss: str, entry: str, place: str, hint: str, tmp_path: Path
) -> None:
    name = {"dpo": "preference", "kto": "labelled"}[loss]
    own = {"name": name, "prompt_column": "q", **yaml.safe_load(place)}
    attention = {"mask": "block_causal", "documents": "positions"}
    data = {
        "version": 1,
        **SECTIONS,
        "model": {**SECTIONS["model"], "attention": attention},
        "loss": loss,
        "training": {"dataset": own, "steps": 4},
    }
    del data["kind"]
    (found,) = find_unknown_keys(tmp_path, yaml.safe_dump({**data, **yaml.safe_load(entry)}))
    told = found.hint or ""
    assert hint.replace("NAME", name, 1) in told
    if not told.startswith("write training.dataset"):
        return
    field, _, written = told.partition("dataset")[2].partition(": ")
    value = yaml.safe_load(written.partition("}")[0] + "}" * written.startswith("{"))
    data["training"]["dataset"] = {**own, field[1:]: value} if field else value
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    found = validate_file(str(tmp_path / "mine.yaml"), [], level="rules", environment={}).problems
    assert [one.message for one in found if one.severity == "error"] == []


@pytest.mark.parametrize("value", [None, True, -1, 0.5, "x", "", [], ["x"], [{}], {}, {"a": 1}])
def test_every_key_of_the_tables_has_a_hint_for_any_value(value: object) -> None:
    tables = [PROGRAMS[name].keys for name in ("axolotl", "llamafactory")]
    for key in {*tables[0], *tables[1], *SECTION_MEANINGS, *ALL_LINEAR_KEYS}:
        for name in (key, key.upper().replace("_", "-")):
            format_section_meaning(name, {name: value})
            for path in ((name,), ("training", name), ("training", "dataset", name)):
                hints = describe_program_key(path, value), describe_program_target(path, value)
                assert all(isinstance(hint, str) for hint in hints)


LOSSES = [
    (
        "{name: dpo, LOSS_TYPE: sigmoid}",
        "remove it: sigmoid is the default loss.variant of loss dpo",
    ),
    ("{name: dpo, LOSS_TYPE: [hinge]}", "write loss.variant: hinge"),
    (
        "{name: dpo, variant: hinge, LOSS_TYPE: hinge}",
        "remove it: hinge is the loss.variant of loss dpo",
    ),
    ("{name: dpo, variant: hinge, LOSS_TYPE: sigmoid}", "write loss.variant: sigmoid"),
    ("{name: dpo, beta: 0.2, LOSS_TYPE: ipo}", "write loss: {name: ipo, beta: 0.2}"),
    ("{name: ipo, LOSS_TYPE: ipo}", "remove it: it is what loss ipo computes"),
    ("{LOSS_TYPE: dpo}", "write loss: dpo"),
    (
        "{name: dpo, LOSS_TYPE: kto}",
        "write loss: kto, and training.dataset: {name: labelled, path: FILE}",
    ),
]


@pytest.mark.parametrize("key", ["loss_type", "dpo_loss_type"])
@pytest.mark.parametrize(("loss", "hint"), LOSSES)
def test_a_loss_is_told_beside_that_of_the_recipe(
    loss: str, hint: str, key: str, tmp_path: Path
) -> None:
    data = {
        **SECTIONS,
        "version": 1,
        "loss": yaml.safe_load(loss.replace("LOSS_TYPE", key)),
        "training": {"dataset": "tiny_pairs", "steps": 4},
    }
    del data["kind"]
    (found,) = find_unknown_keys(tmp_path, yaml.safe_dump(data))
    assert (found.hint, found.fix) == (hint, None)
    written = hint.partition("write ")[2].partition(", and ")[0]
    path, _, value = written.partition(": ")
    del data["loss"][key]
    if path == "loss":
        data["loss"] = yaml.safe_load(value)
    elif path:
        data["loss"][path.removeprefix("loss.")] = value
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    left = validate_file(str(tmp_path / "mine.yaml"), [], level="schema", environment={}).problems
    assert [one.message for one in left] == []


def test_settings_of_adapters_at_the_top_become_one_converter(tmp_path: Path) -> None:
    entries = "adapter: lora\nlora_r: 16\nlora_alpha: 32\nload_in_4bit: true\n"
    found = find_unknown_keys(tmp_path, write_recipe(entries))
    assert len(found) == 4
    for one in found:
        hint = one.hint or ""
        (converter,) = yaml.safe_load(hint.rpartition("converters: ")[2])
        assert converter == {"name": "qlora", "rank": 16, "alpha": 32}


def test_several_datasets_are_told_the_mixture(tmp_path: Path) -> None:
    (found,) = find_unknown_keys(tmp_path, write_recipe("datasets: [{path: a}, {path: b}]"))
    written = (found.hint or "").replace("FILE", "chats.jsonl").partition("training.dataset: ")[2]
    text = write_recipe(f"dataset: {written}", "training")
    assert find_unknown_keys(tmp_path, text) == []
    wrong = text.replace("sources", "datasets")
    assert [one.suggestion for one in find_unknown_keys(tmp_path, wrong)] == ["sources"]


def test_a_model_of_another_program_within_the_section_is_its_folder(tmp_path: Path) -> None:
    (found,) = find_unknown_keys(tmp_path, write_recipe("base_model: Qwen/Qwen3-0.6B", "model"))
    assert found.hint == "write hf_assets_path: hub:Qwen/Qwen3-0.6B"


def test_a_misspelt_key_keeps_its_suggestion(tmp_path: Path) -> None:
    (found,) = find_unknown_keys(tmp_path, write_recipe("seq_length: 64", "training"))
    assert found.suggestion == "seq_len"


@pytest.mark.parametrize(
    ("text", "program"), [(AXOLOTL, "axolotl"), (LLAMAFACTORY, "llamafactory")]
)
def test_a_version_makes_no_recipe_of_a_configuration(
    text: str,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(text)
    assert run_and_flush(["validate", "theirs.yaml"]) == 2
    told = capsys.readouterr()
    shown = told.out + told.err
    assert re.findall(r"error\[.*\]: (.*)", shown) == [
        f"this is a configuration of {program}, not a recipe"
    ]
    assert "titanrun migrate theirs.yaml" in shown
    assert run_and_flush(["migrate", "theirs.yaml", "-o", "mine.yaml"]) == 0
    report = capsys.readouterr().err
    assert "version: 1" not in report.partition("left out")[0]
    assert Path("mine.yaml").read_text().count("version: 1") == 1


def test_a_recipe_with_a_key_of_axolotl_stays_a_recipe() -> None:
    assert detect_program({"version": 1, "model": "llama3", "base_model": "x"}) == ""
    assert detect_program({"version": 1, "extends": "a.yaml", "base_model": "x"}) == ""


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("exo_pair", "there is no loss 'exo_pair' here, only sigmoid, ipo,"),
        (["sigmoid", "sft"], "there is no sum of several losses here: choose one of sigmoid, ipo,"),
        ("grpo", "remove it: write kind: rl and rl.algorithm, see titanrun ls algorithms"),
    ],
)
def test_a_loss_type_of_trl_that_is_no_loss_here_is_told(value: Any, told: str) -> None:
    assert describe_program_key(("loss_type",), value).startswith(told)


@pytest.mark.parametrize(
    ("value", "kind"), [(None, "sft"), (["ipo"], "dpo"), ("kto", "kto"), ("exo", "sft")]
)
def test_the_kind_of_a_recipe_follows_from_the_loss_type_of_trl(value: Any, kind: str) -> None:
    assert choose_trl_kind({"loss_type": value}) == kind


def test_adapters_of_trl_are_the_kind_lora() -> None:
    assert choose_trl_kind({"use_peft": True, "loss_type": "nll"}) == "lora"
    assert choose_trl_kind({"use_peft": True, "loss_type": "sigmoid"}) == "dpo"
