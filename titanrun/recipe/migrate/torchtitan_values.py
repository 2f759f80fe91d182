"""Conversion of torchtitan's values that do not stay the same."""

from typing import Any

from titanrun.recipe.migrate.key_mapping import (
    ConvertedValue,
    KeyCondition,
    SourceKey,
    SourceValues,
)

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam"}
CONVERTERS = {
    "quantize.linear.float8": "float8_linear",
    "quantize.grouped_mm.float8": "float8_grouped_mm",
    "quantize.linear.mx": "mxfp8_linear",
    "quantize.grouped_mm.mx": "mxfp8_grouped_mm",
}
OLD_CONVERTERS = {"float8": "quantize.linear.float8", "mx": "quantize.linear.mx"}
BF16_STATES = "fused_opt_states_bf16"
WHEN_DECAYING = KeyCondition(
    "lr_scheduler.decay_ratio",
    lambda value: value != 0,
    0.5,
    "with a decay: lr_scheduler.decay_ratio is not 0",
)
AUTO_FILTER = "auto_filter_small_kn"
HF_DEBUG_SIZES = "hidden_size 256, 2 layers and 16 heads"
FLAVORS = {"flux-debug": "debugmodel", "flux-dev": "dev", "flux-schnell": "schnell"}
NEW_MODULES = {"lm_head": "output"}
OWN_MODULES = ("torchtitan.models.", "torchtitan.experiments.", "torchtitan.components.")
REPLICATED = "llama3, with the replica groups of fault_tolerance"
SYNCED_GROUPS = (
    "the loss of a step is that of the group that writes; checkpoints and validation use the "
    "weights of the last sync"
)
SAVED_GROUPS = "set to true: a replica group that returns starts from a checkpoint"
UNTRACED_GROUPS = "set to false: replica groups write no traces, and the metrics of one rank"
DEFAULT_GROUP_SIZE = 2
DEFAULT_GROUPS = f"left out: without a number there are {DEFAULT_GROUP_SIZE} groups"
COMPILED = (
    "the same model; parallelism comes from the parallelism section, not from compiler passes"
)
FAMILIES: dict[str, tuple[str, str]] = {
    "llama3_ft": ("llama3", REPLICATED),
    "simple_fsdp.llama3": ("llama3", COMPILED),
    "simple_fsdp.deepseek_v3": ("deepseek_v3", COMPILED),
    "compiler_toolkit.llama3": ("llama3", COMPILED),
    "compiler_toolkit.deepseek_v3": ("deepseek_v3", COMPILED),
    "autoparallel.llama3": ("llama3", COMPILED),
    "autoparallel.deepseek_v3": ("deepseek_v3", COMPILED),
    "autoparallel.local_map_deepseek_v3": ("deepseek_v3", COMPILED),
    "transformers_modeling_backend": (
        "transformers",
        "the component that trains a causal model of the transformers package",
    ),
}


def convert_to_target(key: SourceKey, value: Any, **words: str) -> ConvertedValue:
    """Return the value at the key's own target."""
    assert key.target is not None
    return ConvertedValue({key.target: value}, **words)


def look_up_word(value: Any, table: dict[str, str]) -> Any:
    """Return what the table has for a word; everything else unchanged."""
    return table.get(value, value) if isinstance(value, str) else value


def convert_negative_to_auto(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write -1 as auto."""
    return convert_to_target(key, "auto" if isinstance(value, int) and value < 0 else value)


def convert_minus_one_to_null(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write -1 as null."""
    return convert_to_target(key, None if value == -1 else value)


def convert_zero_to_one(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write "0", which torchtitan accepted for every layer too, as "1"."""
    return convert_to_target(key, "1" if value == "0" else value)


def convert_group_size(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Leave out 0, with which torchtitan deals no data."""
    return convert_to_target(key, value) if value else ConvertedValue({}, how=DEFAULT_GROUPS)


def convert_global_batch_size(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Count the sequences of all replica groups: torchtitan counts those of one."""
    groups = values.get("fault_tolerance.group_size") or DEFAULT_GROUP_SIZE
    if not values.get("fault_tolerance.enable") or not isinstance(value, int) or value < 0:
        return convert_negative_to_auto(key, value, values)
    return convert_to_target(key, value * groups, how="the sequences of all replica groups")


def convert_checkpoint_switch(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Save checkpoints where there are replica groups; torchtitan's groups do without."""
    if values.get("fault_tolerance.enable") is True and value is False:
        return convert_to_target(key, True, how=SAVED_GROUPS)
    return convert_to_target(key, value)


def convert_profiling_switch(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write no traces, and the metrics of one rank, where there are replica groups."""
    if values.get("fault_tolerance.enable") is True and value is True:
        return convert_to_target(key, False, how=UNTRACED_GROUPS)
    return convert_to_target(key, value)


def convert_async_mode(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write the mode in lower case; replica groups save in the foreground."""
    converted = convert_to_lower_case(key, value, values)
    if not values.get("fault_tolerance.enable") or "disabled" in converted.targets.values():
        return converted
    return convert_to_target(key, "disabled", how="replica groups do not save in the background")


def convert_process_group(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Leave out what has an equivalent, and refuse other communication."""
    if value in ("gloo", "nccl"):
        return ConvertedValue({}, how=key.how)
    return ConvertedValue({}, refused="groups communicate over gloo only")


def convert_empty_to_null(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write an empty text, or 0, as null."""
    return convert_to_target(key, value or None)


def reject_unless_empty(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Drop it if empty, which means unset in torchtitan; else refuse it."""
    return ConvertedValue({}) if not value else ConvertedValue({}, refused=key.how)


def convert_optimizer_name(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write the name in lower case: adamw, adam."""
    return convert_to_target(key, look_up_word(value, OPTIMIZERS))


def convert_optimizer_implementation(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Map fused_opt_states_bf16 to fused with optimizer.state_dtype bfloat16."""
    return (
        ConvertedValue({"optimizer.state_dtype": "bfloat16"})
        if value == BF16_STATES
        else convert_to_target(key, value)
    )


def convert_to_lower_case(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write it in lower case; torchtitan ignored the case."""
    return convert_to_target(key, value.lower() if isinstance(value, str) else value)


def convert_flavor(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Write flux-debug, flux-dev and flux-schnell without the family prefix.

    With hf_transformers.model drop it: that folder's config.json has the sizes.
    """
    if not values.get("hf_transformers.model"):
        return convert_to_target(key, FLAVORS.get(str(value), value))
    smaller = f"; torchtitan reduces them to {HF_DEBUG_SIZES}" if value == "debugmodel" else ""
    return ConvertedValue({}, how=f"left out: config.json in model.path has all sizes{smaller}")


def convert_hf_model(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Write it as a folder; torchtitan fetches config.json from the Hub, titanrun reads files."""
    if not value:
        return ConvertedValue({})
    return convert_to_target(
        key, value, how=key.how.replace("REPO", str(value)).replace("FOLDER", str(value))
    )


def convert_local_batch_size(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Raise it to one microbatch per pipeline stage, without which 1F1B raises an error."""
    degree = values.get("parallelism.pipeline_parallel_degree")
    size = values.get("parallelism.pipeline_parallel_microbatch_size")
    schedule = str(values.get("parallelism.pipeline_parallel_schedule")).lower()
    numbers = [number for number in (value, degree, size) if isinstance(number, int)]
    if len(numbers) < 3 or schedule != "1f1b" or numbers[1] <= 1:
        return convert_to_target(key, value)
    needed = numbers[1] * numbers[2]
    if numbers[0] >= needed:
        return convert_to_target(key, value)
    return convert_to_target(
        key,
        needed,
        how=f"raised from {value}: schedule 1F1B needs {numbers[1]} microbatches, one per stage, "
        "and PyTorch raises an error with fewer",
    )


def convert_family(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Map names of torchtitan's experiments to the family they train, see below.

    flux also sets loss: flow_matching.
    """
    name, how = FAMILIES.get(str(value), (value, ""))
    if value == "vlm":
        return ConvertedValue({}, refused="titanrun has no vision-language models")
    if name == "flux":
        return ConvertedValue({"model.name": name, "loss.name": "flow_matching"})
    return convert_to_target(key, name, how=how)


def convert_hf_assets_path(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Drop it if model.tokenizer_path is set, which takes precedence, as in torchtitan."""
    return (
        ConvertedValue({}) if values.get("model.tokenizer_path") else convert_to_target(key, value)
    )


def convert_tokenizer_path(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Refuse a file tokenizer.model, as torchtitan does: it must be a folder."""
    if isinstance(value, str) and value.endswith("tokenizer.model"):
        return ConvertedValue(
            {},
            refused="torchtitan 0.2.2 rejects a tokenizer.model too: name a folder with "
            "tokenizer.json",
        )
    return convert_to_target(key, value) if value else ConvertedValue({})


def convert_converters(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Map the list to components in the same order.

    Their options, in the quantize sections, become their fields.
    """
    names = value if isinstance(value, list) else [value]
    known = [look_up_word(look_up_word(name, OLD_CONVERTERS), CONVERTERS) for name in names]
    return ConvertedValue({f"converters[{name}].name": name for name in known})


def convert_module_names(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Map the name lm_head of later versions to output."""
    if not isinstance(value, list):
        return convert_word_list(key, value, _)
    names = [look_up_word(name, NEW_MODULES) for name in value]
    return convert_to_target(
        key, names, how="" if names == value else "lm_head is called output, as in torchtitan 0.2.2"
    )


def convert_filter_fqns(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map auto_filter_small_kn in the list, which is no module, to its own setting."""
    if not isinstance(value, list) or AUTO_FILTER not in value:
        return convert_module_names(key, value, values)
    converted = convert_module_names(key, [name for name in value if name != AUTO_FILTER], values)
    section = str(key.target).rpartition(".")[0]
    return ConvertedValue(
        {**converted.targets, f"{section}.{AUTO_FILTER}": True}, how=converted.how
    )


def convert_word_list(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Split text at commas into a list."""
    return convert_to_target(
        key, [word for word in value.split(",") if word] if isinstance(value, str) else value
    )


def convert_switch(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Keep the switch; its meaning differs only while it is on."""
    return convert_to_target(key, value, how=key.how if value else "")


def convert_validation_switch(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Enable validation; it is off unless a recipe has held-out data."""
    return convert_to_target(key, value, how=key.how) if value else ConvertedValue({})


def convert_degree(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Keep the degree; its meaning differs only above 1."""
    return convert_to_target(
        key, value, how=key.how if isinstance(value, int) and value > 1 else ""
    )


def convert_torchtitan_tensorboard(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map the switch to a tracker in the list."""
    return ConvertedValue({"metrics.trackers[tensorboard].name": "tensorboard"} if value else {})


def convert_torchtitan_wandb(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map the switch to a tracker in the list."""
    return ConvertedValue({"metrics.trackers[wandb].name": "wandb"} if value else {})


def convert_torchtitan_warmup(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Reduce a warmup longer than the schedule to its length, as in torchtitan."""
    longest = values.get("lr_scheduler.total_steps") or values.get("training.steps")
    if isinstance(value, int) and isinstance(longest, int) and value > longest:
        return convert_to_target(
            key,
            longest,
            how=f"reduced to the {longest} steps of the schedule, as in torchtitan; in titanrun a "
            "longer one is an error",
        )
    return convert_to_target(key, value)


def convert_export_dtype(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the dtype of the last save: only that of the exported folder."""
    if values.get("checkpoint.last_save_in_hf"):
        return convert_to_target(key, value, how=key.how if value != key.default else "")
    if value == key.default:
        return ConvertedValue({})
    return ConvertedValue(
        {},
        refused="checkpoints keep the dtype of training; last_save_in_hf = true exports a folder "
        "in another dtype",
    )


def convert_torchtitan_seed(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Use 0 if unset: there is no unseeded run."""
    return (
        convert_to_target(
            key, 0, how="torchtitan's run is unseeded and differs each time; titanrun uses seed 0"
        )
        if value is None
        else convert_to_target(key, value)
    )


def convert_custom_module(key: SourceKey, value: Any, _: SourceValues) -> ConvertedValue:
    """Refuse a module that adds keys, unless it is one of torchtitan's own extensions."""
    if not value:
        return ConvertedValue({})
    if str(value).startswith(OWN_MODULES):
        return ConvertedValue({}, how="left out: the keys of torchtitan's own extensions are known")
    return ConvertedValue(
        {},
        refused="recipes import nothing: an installed plug-in, listed in plugins, can add a "
        "section",
    )
