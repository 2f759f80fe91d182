"""Keys of other tools whose value means something else than that of titanrun's field.

Some keys of torchft are no fields: replica groups have one way to do what they choose.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from titanrun.components.metrics.config import TrackerConfig
from titanrun.config.problems import DataPath
from titanrun.config.registry import get_choice_names
from titanrun.config.serialize import to_flow_yaml
from titanrun.config.suggest import format_word_list
from titanrun.config.type_introspection import find_value
from titanrun.recipe.best_checkpoint import list_needed_settings
from titanrun.recipe.editing.model_names import describe_attention

# suffixes that make a key an override; `key+` adds to a list in files too
# losses that other programs name under rl
PREFERENCE_DATASETS = {
    **dict.fromkeys(("dpo", "ipo", "orpo", "simpo"), "preference"),
    "kto": "labelled",
}
OPERATORS = "-!"


def format_key_meaning(path: DataPath, data: Any) -> str:
    """Return what to write for the key at `path`, or an empty text if its name says it.

    A word with another unit than titanrun's field must not be replaced by that field's name.
    """
    key, value = str(path[-1]), find_value(data, path)
    word = key.lower().replace("-", "_")
    if path[:-1] == GROUPS and word in GROUP_MEANINGS:
        return describe_group_key(word, value)
    return MEANINGS[word](value, data) if word in MEANINGS else format_operator_key(path)


def format_operator_key(path: DataPath) -> str:
    """Return the hint for a key that ends in the operator of an override, else empty text."""
    key = str(path[-1])
    name = key.rstrip(OPERATORS)
    if name == key:
        return ""
    return f"{key} is for the command line: in a file, {name} replaces the whole value"


def describe_accumulation(value: Any, data: Any) -> str:
    """Return the global batch size that stands for a number of accumulation steps."""
    local = find_value(data, ("training", "local_batch_size"))
    known = isinstance(local, int) and isinstance(value, int)
    example = f", {local * value} on one rank" if known else ""
    return (
        "write training.global_batch_size: local_batch_size x data-parallel ranks x accumulation "
        f"steps{example}"
    )


def describe_warmup_ratio(value: Any, _: Any) -> str:
    """Return the setting that is a share of the run."""
    number = f": {to_flow_yaml(value)}" if isinstance(value, int | float) else ""
    return f"write lr_scheduler.warmup_ratio{number}, a share of the steps"


def describe_quantized_base(value: Any, _: Any) -> str:
    """Return the converter with a base of fewer bits, an empty text where that is switched off."""
    if value is not True:
        return ""
    return (
        "write name: qlora in place of lora: its frozen weights have 4 bits, or 8 with base: int8"
    )


def describe_warmup(value: Any, _: Any) -> str:
    """Return the setting for a share of the run; a number of steps is that of another name."""
    share = value
    if isinstance(value, str) and value.strip().endswith("%"):
        with suppress(ValueError):
            share = float(value.strip().removesuffix("%")) / 100
    if not isinstance(share, float) or not 0 < share < 1:
        return ""
    return f"write lr_scheduler.warmup_ratio: {share:g}, a share of the steps"


def describe_lowest_rate(value: Any, data: Any) -> str:
    """Return the factor that stands for a lowest learning rate."""
    peak = find_value(data, ("optimizer", "lr"))
    known = isinstance(peak, int | float) and isinstance(value, int | float) and peak
    number = f": {to_flow_yaml(float(f'{value / peak:.6g}'))}" if known else ""
    return f"write lr_scheduler.min_lr_factor{number}, the lowest rate as a part of optimizer.lr"


def describe_betas(value: Any, data: Any) -> str:
    """Return the two fields that stand for a list of two."""
    first, second = value if isinstance(value, list) and len(value) == 2 else (0.9, 0.95)
    return f"write beta1: {to_flow_yaml(first)} and beta2: {to_flow_yaml(second)}"


def describe_trackers(word: str) -> Callable[[Any, Any], str]:
    """Return the describer of a switch for a service that records metrics."""
    name = word.removeprefix("use_")
    return lambda value, data: f"write metrics.trackers: [{name}]"


def describe_best_model(value: Any, data: Any) -> str:
    """Return the settings that keep the best checkpoint."""
    if value is False:
        return "remove it: checkpoint.keep_best is 0 by default"
    settings = ["checkpoint.keep_best: 1", *list_needed_settings(data)]
    return (
        f"write {format_word_list(settings, conjunction='and', max_words=len(settings))}; "
        "they keep the checkpoint with the lowest validation loss"
    )


def describe_best_count(value: Any, data: Any) -> str:
    """Return the number of best checkpoints for a switch, with the settings that it needs."""
    needed = list_needed_settings(data)
    if value is False or not needed:
        return f"write {int(value)}"
    return f"write 1, and {format_word_list(needed, conjunction='and', max_words=len(needed))}"


def format_value_meaning(path: DataPath, value: Any, data: Any) -> str:
    """Return what to write for a wrong value in a recipe, or an empty text."""
    if path == BEST and isinstance(value, bool):
        return describe_best_count(value, data)
    if path in SWITCHES and (isinstance(value, bool) or path != AC):
        return SWITCHES[path](value, data)
    if path[-1:] == ("target_modules",) and isinstance(value, str):
        listed = find_value(data, path)  # by the names of the model
        return f"write {to_flow_yaml(listed)}" if isinstance(listed, list) else ""
    if path == STEPS and value == -1:
        return describe_unlimited_steps(data)
    if path == EPOCHS and value == -1:
        return "write how many epochs, or training.steps in its place"
    counted = COUNT.fullmatch(value) if isinstance(value, str) else None
    if counted is not None:
        return describe_count(path, counted[1], f"{counted[2].lower()}s")
    if path == ("rl",) and isinstance(value, str) and value in PREFERENCE_DATASETS:
        return (
            f"write loss: {value}, and training.dataset: {{name: {PREFERENCE_DATASETS[value]}, "
            "path: FILE}"
        )
    if is_percentage(path, value):
        return f"write {value / 100:g} for {value:g}%"
    is_part = isinstance(value, float) and not value.is_integer()
    if path != EPOCHS or not is_part:
        return ""
    return (
        f"epochs are whole: write training.steps, {to_flow_yaml(value)} x sequences / "
        "global_batch_size; titanrun data stats counts the sequences"
    )


def describe_unlimited_steps(data: Any) -> str:
    """Return what is meant by a number of steps that other programs take for no limit."""
    if find_value(data, EPOCHS) is not None:
        return "remove it: training.epochs is the length of the run"
    return "write training.epochs: 3 in its place, or a number of steps"


def describe_metrics(value: Any, data: Any) -> str:
    """Return the tracker whose name stands in the place of the section."""
    known = get_choice_names(TrackerConfig)
    return f"write {{trackers: [{value}]}}" if value in known else ""


def describe_checkpoint(value: Any, data: Any) -> str:
    """Return the setting of a path that stands in the place of the section."""
    is_path = isinstance(value, str) and "/" in value
    return f"write {{initial_load_path: {to_flow_yaml(value)}}}" if is_path else ""


def describe_count(path: DataPath, number: str, unit: str) -> str:
    """Return the setting for a number with a word such as steps, which the field may not count."""
    is_length = path[:-1] == ("training",) and path[-1] in LENGTHS
    if is_length and path[-1] != unit:
        return f"write training.{unit}: {number} in place of {path[-1]}"
    if not is_length and unit != "steps":
        return f"write a number of steps, not of {unit}"
    return f"write {number}"


def is_percentage(path: DataPath, value: Any) -> bool:
    """Return whether a number in the place of a share is one of percent."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 1 < value <= 100 and SHARE.search(str(path[-1])) is not None


def describe_checkpointing(value: Any, data: Any) -> str:
    """Return the component that stands for a switch."""
    return f"write activation_checkpoint: {'none' if value is False else 'full'}"


def give_text(text: str) -> Callable[[Any, Any], str]:
    """Return a describer that says the same of every value."""
    return lambda value, data: text


def describe_bf16(value: Any, data: Any) -> str:
    """Return the dtype that a switch chooses."""
    return f"write training.mixed_precision_param: {'float32' if value is False else 'bfloat16'}"


def describe_fp16(value: Any, data: Any) -> str:
    """Return the dtype that takes the place of float16, which no field accepts."""
    if value is False:
        return "remove it: nothing is computed in float16"
    return "nothing is computed in float16: write training.mixed_precision_param: bfloat16"


def describe_group_key(word: str, value: Any) -> str:
    """Return what replica groups do in place of what a key asks for."""
    always, others = GROUP_MEANINGS[word]
    text = to_flow_yaml(value)
    if text in others:
        return f"{word}: {text} is not built, since {others[text]}; remove it"
    return f"{always}; remove it"


BEST: DataPath = ("checkpoint", "keep_best")
LENGTHS = ("steps", "epochs", "tokens")
COUNT = re.compile(r"([0-9]+) *(step|epoch|token)s?", re.IGNORECASE)
SHARE = re.compile("dropout|fraction|ratio|share|smoothing")
EPOCHS: DataPath = ("training", "epochs")
STEPS: DataPath = ("training", "steps")
METRICS: DataPath = ("metrics",)
AC: DataPath = ("activation_checkpoint",)
SWITCHES: Mapping[DataPath, Callable[[Any, Any], str]] = {
    AC: lambda value, _: f"write {'full' if value else 'none'}",
    METRICS: describe_metrics,
    ("checkpoint",): describe_checkpoint,
}
"""What stands for a word in the place of a section."""
GROUPS: DataPath = ("fault_tolerance",)
# what groups do, and why they do not do what a value asks for
GROUP_MEANINGS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "rows": (
        "the rows of a step are always dealt to the groups that take part in it",
        {
            "fixed": "the rows of a lost group would be lost too, and they are dealt to the groups "
            "that take part in a step"
        },
    ),
    "process_group": (
        "groups always communicate over gloo",
        {
            "nccl": "groups communicate over gloo, with the same sums",
            "mccl": "groups communicate over gloo, with the same sums",
        },
    ),
    "use_async_quorum": (
        "groups always agree on a step before it begins: its rows are dealt to them",
        {"true": "groups agree on a step before it begins: its rows are dealt to them"},
    ),
}
MEANINGS: Mapping[str, Callable[[Any, Any], str]] = {
    **dict.fromkeys(
        (
            "accumulate_grad_batches",
            "grad_accum_steps",
            "gradient_accumulation",
            "gradient_accumulation_steps",
        ),
        describe_accumulation,
    ),
    **dict.fromkeys(("warmup_fraction", "warmup_ratio"), describe_warmup_ratio),
    "warmup": describe_warmup,
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), describe_quantized_base),
    **dict.fromkeys(("lr_min", "min_learning_rate", "min_lr"), describe_lowest_rate),
    **dict.fromkeys(
        (
            *("_attn_implementation", "attention_backend", "attention_implementation"),
            *("attn_backend", "attn_impl", "attn_implementation", "flash_attention", "flash_attn"),
            *("use_flash_attention", "use_flash_attention_2", "use_flash_attn"),
        ),
        describe_attention,
    ),
    "betas": describe_betas,
    "bf16": describe_bf16,
    "fp16": describe_fp16,
    **dict.fromkeys(
        ("gpus", "n_gpus", "num_gpus", "num_processes", "world_size"),
        give_text("write launch.nproc_per_node, or --nproc on the command line"),
    ),
    **dict.fromkeys(
        ("gradient_checkpointing", "use_activation_checkpointing"), describe_checkpointing
    ),
    **{
        word: describe_trackers(word)
        for word in ("mlflow", "tensorboard", "use_wandb", "use_tensorboard", "wandb")
    },
    "load_best_model_at_end": describe_best_model,
    "fsdp": give_text(
        "FSDP is the default; parallelism.data_parallel_shard_degree sets its number of ranks"
    ),
    **dict.fromkeys(
        ("resume", "resume_from", "resume_from_checkpoint"),
        give_text(
            "titanrun resume RUN goes on with a run; checkpoint.initial_load_path begins a new one "
            "with saved weights"
        ),
    ),
}
