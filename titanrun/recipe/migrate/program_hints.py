"""Hints for keys of axolotl, LLaMA-Factory and TRL that someone writes into a recipe."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.components.metrics.config import TrackerConfig
from titanrun.config.problems import DataPath
from titanrun.config.registry import get_choice_names
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.tree import format_path
from titanrun.config.type_introspection import find_config_class
from titanrun.recipe.editing.key_meanings import describe_checkpointing
from titanrun.recipe.migrate.axolotl import ALIASES, AXOLOTL
from titanrun.recipe.migrate.axolotl_data import convert_chat_template
from titanrun.recipe.migrate.axolotl_losses import TRL_LOSSES
from titanrun.recipe.migrate.axolotl_model import detect_family_and_flavor, get_weights_folder
from titanrun.recipe.migrate.key_mapping import SourceKey, is_hub_name
from titanrun.recipe.migrate.llamafactory import LLAMAFACTORY
from titanrun.recipe.migrate.llamafactory_model import PAIR_LOSSES
from titanrun.recipe.migrate.loss_hints import describe_loss, describe_loss_key, describe_trl_loss
from titanrun.recipe.migrate.sample_limits import SAMPLE_LIMITS, describe_sample_limit
from titanrun.recipe.migrate.sharding_hints import (
    describe_fsdp_config,
    describe_offload,
    describe_strategy,
    describe_zero,
    describe_zero_switch,
)
from titanrun.recipe.migrate.target_paths import parse_target
from titanrun.recipe.recipe import Recipe

PACKED = (
    "write training.dataset.packing: best_fit, of dataset chat; titanrun's own models take "
    "model.attention.mask: block_causal with it"
)
LEFT_OUT = "left out: "
DATASET: DataPath = ("training", "dataset")
OF_FOLDER = "with files of the records of all datasets in the folder, in the same columns"
PROMPT_LIMIT = "remove it: training.seq_len limits a prompt and its reply together"
STAGES = {
    "dpo": "write loss: dpo, and training.dataset: {name: preference, path: FILE}",
    "kto": "write loss: kto, and training.dataset: {name: labelled, path: FILE}",
    "pt": "write kind: pretrain, and checkpoint.initial_load_in_hf: true to start from weights",
    "rm": "write loss: reward, and model.head: scalar",
    "sft": "write kind: sft",
}
TRL_TARGETS = {
    "beta": "loss.beta",
    "chat_template_path": "tokenizer.chat_template",
    "dataset_config": "training.dataset.subset",
    "dataset_text_field": "training.dataset.column",
    "dataset_train_split": "training.dataset.split",
    "desirable_weight": "loss.desirable_weight",
    "eos_token": "tokenizer.stop_tokens",
    "eval_dataset": "validation.dataset",
    "max_completion_length": "rl.sampling.max_new_tokens",
    "num_generations": "rl.rollout.samples_per_prompt",
    "rpo_alpha": "loss.nll_weight",
    "torch_dtype": "training.dtype",
    "undesirable_weight": "loss.undesirable_weight",
}
"""Keys of TRL that the tables of the other programs do not have, with the field that does it."""


def describe_program_key(path: DataPath, value: Any) -> str:
    """Return what to write for a key whose value has another form here, else an empty text."""
    word = normalize_key(path)
    is_model = MEANINGS.get(word) is describe_model_section
    if is_model and path[0] == "model" and isinstance(value, str):
        return f"write hf_assets_path: {get_weights_folder({'base_model': value})}"
    # a mixture has datasets of its own
    describe = None if word == "datasets" and "dataset" in path else MEANINGS.get(word)
    return "" if describe is None else describe(value)


def describe_program_target(path: DataPath, value: Any) -> str:
    """Return where the setting of a key of another program is, or why there is none.

    Return an empty text if no program has the key.
    """
    word = ALIASES.get(normalize_key(path), normalize_key(path))
    keys = [
        key for tool in (AXOLOTL, LLAMAFACTORY) for key in iter_source_keys(tool.keys, word, path)
    ]
    target = next((key.target for key in keys if key.target), TRL_TARGETS.get(word))
    if target is not None:
        return describe_target(str(path[-1]), target, value) if target != format_path(path) else ""
    reasons = (describe_reason(key, str(path[-1]), value) for key in keys)
    return next((reason for reason in reasons if reason), "")


def is_program_key(path: DataPath) -> bool:
    """Return whether a program has a key of this name, in any section."""
    names = (name for tool in (AXOLOTL, LLAMAFACTORY) for name in tool.keys)
    return normalize_key(path) in {*MEANINGS, *TRL_TARGETS, *(n.rpartition(".")[2] for n in names)}


def iter_source_keys(
    keys: Mapping[str, SourceKey], word: str, path: DataPath
) -> Iterator[SourceKey]:
    """Yield the keys of a program that a word may be; within a dataset, its own first."""
    for name in (f"datasets.{word}", word) if "dataset" in path[:-1] else (word,):
        if name in keys:
            yield keys[name]


def describe_target(key: str, target: str, value: Any) -> str:
    """Return the hint for a key that is `target` in a recipe."""
    steps = parse_target(target)
    if not any(step.startswith("[") for step in steps):
        return f"'{key}' is {target} here"
    *section, name, field = steps
    component = {"name": name[1:-1], **({} if field == "name" else {field: value})}
    return f"write {'.'.join(section)}: [{to_flow_yaml(component)}]"


def describe_reason(key: SourceKey, written: str, value: Any) -> str:
    """Return why a key has no field, or what decides it."""
    how = key.how
    if key.outcome == "refused" and not how:
        found = key.convert_value(value, {})
        how = found.refused or found.how
    if not how:
        return ""
    if key.outcome == "manual":
        return f"set {how}"
    if key.outcome == "unread" or how.startswith(LEFT_OUT):
        return f"remove it: {how.removeprefix(LEFT_OUT)}"
    return f"there is no '{written}' here: {how}"


def describe_model_section(value: Any) -> str:
    """Return the section of a model that is named by its folder or its name on the Hub."""
    if not isinstance(value, str) or not value:
        return "write model: {name: FAMILY, flavor: auto, hf_assets_path: hub:OWNER/NAME}"
    named = {"base_model": value}
    family, flavor = detect_family_and_flavor(named)
    model = {"name": family, **({"flavor": flavor} if flavor else {})}
    written = to_flow_yaml({**model, "hf_assets_path": get_weights_folder(named)})
    return f"write model: {written}"


def describe_named_model(path: DataPath, name: Any) -> str:
    """Return the model of a folder, or of a name on the Hub, in the place of a family."""
    is_model = path in (("model",), ("model", "name")) and isinstance(name, str)
    if not is_model or not ("/" in name or Path(name).is_dir()):
        return ""
    hint = describe_model_section(name)
    return hint if path == ("model",) else hint.replace("model: {", "").removesuffix("}")


def describe_datasets(value: Any) -> str:
    """Return the dataset of one entry of a list, or the mixture of several."""
    count = len(value) if isinstance(value, list) else 1
    if count > 1:
        return (
            "write training.dataset: {name: mixture, sources: [{dataset: {name: chat, path: "
            "FILE}}, {dataset: {name: chat, path: FILE}}]}"
        )
    return "write training.dataset: {name: chat, path: FILE}, or repo: OWNER/NAME on the Hub"


def describe_dataset_name(value: Any) -> str:
    """Return the setting of a file or folder, or of a dataset on the Hub."""
    field = "path" if isinstance(value, str) and not is_hub_name(value) else "repo"
    written = to_flow_yaml(value) if isinstance(value, str) else "OWNER/NAME"
    return f"write training.dataset.{field}: {written}"


def describe_reply_key(path: DataPath, value: Any, data: Any) -> str:
    """Return what to write for a key of several datasets, or of a number of records.

    Replies that are compared come from one dataset. A loss is told beside that of the recipe.
    Return an empty text for other keys and recipes, whose content is `data`.
    """
    if normalize_key(path) in SAMPLE_LIMITS:
        return describe_sample_limit(path, value, data)
    describe = MEANINGS.get(normalize_key(path))
    if describe in (describe_trl_loss, describe_pair_loss):
        losses = TRL_LOSSES if describe is describe_trl_loss else PAIR_LOSSES
        return describe_loss_key(value, losses, data)
    if describe is not describe_datasets:
        return ""
    kinds = [find_config_class(Recipe, data, place) for place in (("loss",), DATASET)]
    compares = next(filter(None, (getattr(kind, "compares", None) for kind in kinds)), None)
    if compares is None:
        return ""
    name = {"pairs": "preference", "labels": "labelled"}[compares]
    if not isinstance(value, list) or len(value) < 2:
        return f"write training.dataset: {{name: {name}, path: FILE}}, or repo: OWNER/NAME"
    return f"write training.dataset: {{name: {name}, path: FOLDER}}, {OF_FOLDER}"


def describe_packing(value: Any) -> str:
    """Return the setting that packs conversations, or says that none does."""
    return PACKED if value else "remove it: conversations are packed only if a dataset says so"


def describe_stage(value: Any) -> str:
    """Return the kind or the loss of a stage of training."""
    return STAGES.get(str(value), "write kind: sft or pretrain, or a loss: dpo, kto, reward")


def describe_pair_loss(value: Any) -> str:
    """Return the loss of a value of LLaMA-Factory's pref_loss."""
    return describe_loss(value, PAIR_LOSSES)


def describe_report(value: Any) -> str:
    """Return the trackers that are meant."""
    named = [str(name).lower() for name in (value if isinstance(value, list) else [value])]
    if named in ([], ["none"], ["false"]):
        return "remove it: without metrics.trackers only metrics.jsonl is written"
    known = get_choice_names(TrackerConfig)
    if all(name in known for name in named):
        return f"write metrics.trackers: {to_flow_yaml(named)}"
    listed = format_word_list(known, conjunction="and")
    return f"write metrics.trackers: [csv]; the trackers are {listed}"


def describe_template(value: Any) -> str:
    """Return the chat template by its name here."""
    found = convert_chat_template(AXOLOTL.keys["chat_template"], value, {}).targets
    name = found.get("tokenizer.chat_template", "auto, NAME or FILE.jinja")
    return f"write tokenizer.chat_template: {name}"


def describe_trained_turns(meant: str) -> str:
    """Return the setting of what the loss counts."""
    return f"write training.dataset.train_on: {meant}, of dataset chat"


def describe_number(target: str, value: Any) -> str:
    """Return the field that holds a number."""
    number = f": {to_flow_yaml(value)}" if isinstance(value, int | float) else ""
    return f"write {target}{number}"


def normalize_key(path: DataPath) -> str:
    """Return the key at the end of a path in the spelling of the programs."""
    return str(path[-1]).lower().replace("-", "_")


MEANINGS: Mapping[str, Callable[[Any], str]] = {
    **dict.fromkeys(
        ("base_model", "model_id", "model_name", "model_name_or_path", "pretrained_model"),
        describe_model_section,
    ),
    **dict.fromkeys(
        ("assistant_only_loss", "completion_only_loss"),
        lambda value: describe_trained_turns("replies" if value else "all"),
    ),
    "chat_template": describe_template,
    "dataset_name": describe_dataset_name,
    "datasets": describe_datasets,
    **dict.fromkeys(("cpu_offload", "offload_params", "offload_optimizer"), describe_offload),
    **dict.fromkeys(
        (
            *("deepspeed", "deepspeed_config", "ds_config", "zero", "zero_optimization"),
            *("zero_optimization_stage", "zero_stage"),
        ),
        describe_zero,
    ),
    **{f"zero{stage}": partial(describe_zero_switch, stage) for stage in (1, 2, 3)},
    **dict.fromkeys(
        ("distributed_strategy", "distributed_type", "sharding_strategy", "strategy"),
        describe_strategy,
    ),
    "fsdp_config": describe_fsdp_config,
    "disable_gradient_checkpointing": lambda value: describe_checkpointing(not value, None),
    "eval_steps": lambda value: describe_number("validation.freq", value),
    **dict.fromkeys(("dpo_loss_type", "loss_type"), describe_trl_loss),
    "max_prompt_length": lambda value: PROMPT_LIMIT,
    "mask_history": lambda value: describe_trained_turns("last_reply" if value else "replies"),
    **dict.fromkeys(
        ("multipack", "neat_packing", "pack_sequences", "sample_packing"), describe_packing
    ),
    "pref_loss": describe_pair_loss,
    "report_to": describe_report,
    "seed": lambda value: describe_number("debug.seed", value),
    "stage": describe_stage,
    **dict.fromkeys(
        ("train_on_inputs", "train_on_prompt"),
        lambda value: describe_trained_turns("all" if value else "replies"),
    ),
}
"""What to write for keys whose value changes with them."""
