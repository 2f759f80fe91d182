"""Keys of LLaMA-Factory's configurations and their migration.

Keys and defaults were read from its argument classes and from transformers' TrainingArguments,
which they extend.
"""

from collections.abc import Callable
from typing import Any

from titanrun.recipe.migrate import axolotl_values as to
from titanrun.recipe.migrate import llamafactory_data as data
from titanrun.recipe.migrate import llamafactory_model as model
from titanrun.recipe.migrate import llamafactory_unsupported as rest
from titanrun.recipe.migrate.axolotl_data import convert_val_set_size
from titanrun.recipe.migrate.axolotl_table import reject_key_if_set
from titanrun.recipe.migrate.evaluation_keys import LLAMAFACTORY_EVALUATION_KEYS
from titanrun.recipe.migrate.key_mapping import (
    OTHER_RECORDS,
    ConvertedValue,
    SourceKey,
    SourceValues,
    ignore_key,
    move_key,
    reject_key,
)

RUN_DIRECTORY = (
    "the run directory itself: an unfinished run in it resumes, another run in it is an error"
)
Conversion = Callable[[SourceKey, Any, SourceValues], ConvertedValue]
# names in axolotl of the keys that its conversions read
AXOLOTL_NAMES = {
    "optimizer": "optim",
    "lr_scheduler": "lr_scheduler_type",
    "micro_batch_size": "per_device_train_batch_size",
    "warmup_steps": "warmup_steps",
    "max_steps": "max_steps",
}


def read_as_axolotl(convert: Conversion) -> Conversion:
    """Return a conversion of axolotl's that finds the values of LLaMA-Factory."""

    def convert_renamed(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        renamed = {theirs: values.get(ours) for theirs, ours in AXOLOTL_NAMES.items()}
        # unset, steps are -1 in transformers
        steps = renamed["max_steps"]
        renamed["max_steps"] = steps if isinstance(steps, int) and steps > 0 else None
        return convert(key, value, renamed)

    convert_renamed.__doc__ = convert.__doc__
    return convert_renamed


def convert_warmup_share(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the share, unless steps are written."""
    is_read = value and not values.get("warmup_steps")
    return ConvertedValue({"lr_scheduler.warmup_ratio": value} if is_read else {})


def convert_warmup_steps(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the steps; a number below 1 is a share. Without either there is no warmup."""
    if isinstance(value, float) and 0 < value < 1:
        return ConvertedValue({"lr_scheduler.warmup_ratio": value})
    if not value and values.get("warmup_ratio"):
        return ConvertedValue({})
    return ConvertedValue({"lr_scheduler.warmup_steps": value or 0})


def convert_steps(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Keep the steps if they are above 0."""
    is_set = isinstance(value, int) and value > 0
    return ConvertedValue({"training.steps": value} if is_set else {})


def convert_checkpointing(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Recompute whole layers unless it is switched off."""
    return ConvertedValue({"activation_checkpoint.name": "none" if value else "full"})


def convert_report_to(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Add the trackers that titanrun has."""
    known = ("wandb", "tensorboard", "mlflow", "trackio")
    named = value if isinstance(value, list) else [value]
    targets = {f"metrics.trackers[{name}].name": name for name in named if name in known}
    others = [name for name in named if name not in (*known, "none", "all", None)]
    return ConvertedValue(targets, refused=f"no tracker {', '.join(others)}" if others else "")


MODEL = (
    move_key("model_name_or_path", None, "model.name", convert=model.convert_llamafactory_model),
    move_key("output_dir", None, "dump_folder", how=RUN_DIRECTORY),
    move_key("stage", "sft", "loss.name", convert=model.convert_stage),
    move_key(
        "finetuning_type", "lora", "converters[lora].name", convert=model.convert_finetuning_type
    ),
    ignore_key(
        "quantization_bit",
        None,
        "the converter qlora sets it",
        convert=model.convert_quantization,
    ),
    *(
        move_key(
            key, default, f"converters[lora].{field}", convert=model.make_adapter_conversion(field)
        )
        for key, default, field in (
            ("lora_rank", 8, "rank"),
            ("lora_alpha", None, "alpha"),
            ("lora_dropout", 0.0, "dropout"),
            ("use_rslora", False, "rank_stabilized"),
            ("use_dora", False, "magnitude"),
        )
    ),
    move_key(
        "lora_target",
        "all",
        "converters[lora].target_modules",
        convert=model.convert_target_modules,
    ),
    move_key("loraplus_lr_ratio", None, "optimizer.lora_plus_ratio"),
)
PREFERENCES = (
    reject_key("pref_loss", "sigmoid", "", convert=model.convert_pair_loss),
    move_key(
        "pref_beta",
        0.1,
        "loss.beta",
        convert=model.make_llamafactory_loss_conversion(
            "beta", *model.DPO_LOSSES, "ipo", "orpo", "simpo", "kto"
        ),
    ),
    move_key(
        "pref_ftx",
        0.0,
        "loss.nll_weight",
        convert=model.make_llamafactory_loss_conversion("nll_weight", *model.DPO_LOSSES),
    ),
    move_key(
        "simpo_gamma",
        0.5,
        "loss.gamma",
        convert=model.make_llamafactory_loss_conversion("gamma", "simpo"),
    ),
    move_key(
        "dpo_label_smoothing",
        0.0,
        "loss.label_smoothing",
        convert=model.make_llamafactory_loss_conversion("label_smoothing", "sigmoid"),
    ),
    move_key(
        "kto_chosen_weight",
        1.0,
        "loss.desirable_weight",
        convert=model.make_llamafactory_loss_conversion("desirable_weight", "kto"),
    ),
    move_key(
        "kto_rejected_weight",
        1.0,
        "loss.undesirable_weight",
        convert=model.make_llamafactory_loss_conversion("undesirable_weight", "kto"),
    ),
)
DATA = (
    move_key("dataset", None, "training.dataset.name", convert=data.convert_dataset),
    move_key("max_samples", None, "training.dataset.sources", convert=data.convert_sample_limit),
    ignore_key("dataset_dir", "data", "the path of the dataset has it"),
    move_key("template", None, "tokenizer.chat_template", convert=data.convert_template),
    move_key("cutoff_len", 2048, "training.seq_len", convert=data.convert_cutoff),
    move_key(
        "packing", None, "training.dataset.packing", convert=data.convert_llamafactory_packing
    ),
    move_key(
        "neat_packing", False, "training.dataset.packing", convert=data.convert_llamafactory_packing
    ),
    move_key(
        "train_on_prompt",
        False,
        "training.dataset.train_on",
        convert=data.make_trained_turns_conversion("all"),
    ),
    move_key(
        "mask_history",
        False,
        "training.dataset.train_on",
        convert=data.make_trained_turns_conversion("last_reply"),
    ),
    move_key("streaming", False, "training.dataset.streaming"),
    move_key(
        "val_size", 0.0, "validation.holdout", how=OTHER_RECORDS, convert=convert_val_set_size
    ),
    *LLAMAFACTORY_EVALUATION_KEYS,
    move_key(
        "dataloader_num_workers",
        0,
        "training.dataloader.num_workers",
        convert=to.convert_step_interval,
    ),
)
TRAINING = (
    move_key("optim", "adamw_torch", "optimizer.name", convert=to.convert_axolotl_optimizer),
    move_key("learning_rate", 5e-5, "optimizer.lr"),
    move_key("weight_decay", 0.0, "optimizer.weight_decay"),
    *(
        move_key(
            key,
            default,
            f"optimizer.{field}",
            convert=read_as_axolotl(to.make_adam_conversion(field, default)),
        )
        for key, default, field in (
            ("adam_beta1", 0.9, "beta1"),
            ("adam_beta2", 0.999, "beta2"),
            ("adam_epsilon", 1e-8, "eps"),
        )
    ),
    move_key(
        "lr_scheduler_type",
        "linear",
        "lr_scheduler.name",
        convert=read_as_axolotl(to.convert_axolotl_schedule),
    ),
    move_key("warmup_steps", 0, "lr_scheduler.warmup_steps", convert=convert_warmup_steps),
    move_key("warmup_ratio", None, "lr_scheduler.warmup_ratio", convert=convert_warmup_share),
    move_key("max_grad_norm", 1.0, "training.max_norm", convert=to.convert_axolotl_max_grad_norm),
    move_key("per_device_train_batch_size", 8, "training.local_batch_size"),
    move_key(
        "gradient_accumulation_steps",
        1,
        "training.global_batch_size",
        convert=read_as_axolotl(to.convert_axolotl_gradient_accumulation),
    ),
    move_key(
        "num_train_epochs",
        3.0,
        "training.epochs",
        convert=read_as_axolotl(to.convert_axolotl_epochs),
    ),
    move_key("max_steps", -1, "training.steps", convert=convert_steps),
    move_key("bf16", False, "training.dtype", convert=model.convert_precision),
    reject_key_if_set("fp16", to.NO_FP16),
    move_key(
        "deepspeed",
        None,
        "parallelism.fsdp_reshard_after_forward",
        convert=to.convert_deepspeed,
    ),
    ignore_key("pure_bf16", False, "bf16 sets training.dtype"),
    move_key(
        "disable_gradient_checkpointing",
        False,
        "activation_checkpoint.name",
        convert=convert_checkpointing,
    ),
    move_key("seed", 42, "debug.seed"),
    move_key("save_steps", 500, "checkpoint.interval", convert=to.convert_step_interval),
    move_key("save_total_limit", None, "checkpoint.keep_latest_k"),
    move_key("logging_steps", 500, "metrics.log_freq", convert=to.convert_step_interval),
    move_key("report_to", None, "metrics.trackers", convert=convert_report_to),
    move_key("run_name", None, "name"),
)
LLAMAFACTORY_KEYS: tuple[SourceKey, ...] = (
    *MODEL,
    *PREFERENCES,
    *DATA,
    *TRAINING,
    *(ignore_key(path, None, why) for why, paths in rest.UNREAD.items() for path in paths.split()),
    *(
        reject_key_if_set(path, why)
        for why, paths in rest.REFUSED.items()
        for path in paths.split()
    ),
)
# keys whose default applies if the file omits them; it may differ from titanrun's
KEYS_WITH_DEFAULTS = (
    "stage",
    "finetuning_type",
    "lora_rank",
    "lora_alpha",
    "lora_target",
    "pref_beta",
    "simpo_gamma",
    "cutoff_len",
    "optim",
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "lr_scheduler_type",
    "warmup_steps",
    "per_device_train_batch_size",
    "num_train_epochs",
    "bf16",
    "disable_gradient_checkpointing",
    "seed",
)
