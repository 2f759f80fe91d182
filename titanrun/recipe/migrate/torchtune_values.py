"""Conversion of torchtune's optimizers, schedules, dtypes and loggers."""

from typing import Any

from titanrun.recipe.migrate.key_mapping import (
    ConvertedValue,
    KeyCondition,
    SourceKey,
    SourceValues,
)
from titanrun.recipe.migrate.torchtune_model import get_torchtune_adapter, has_native_family

FORMATS = "the states have torchao's formats and are not paged to the host"
OPTIMIZERS: dict[str, tuple[str, str]] = {
    "torch.optim.AdamW": ("adamw", ""),
    "torch.optim.Adam": ("adam", ""),
    "torch.optim.SGD": ("sgd", ""),
    "bitsandbytes.optim.AdamW": ("adamw", ""),
    "bitsandbytes.optim.PagedAdamW": ("adamw", "the states are not paged to the host"),
    "bitsandbytes.optim.AdamW8bit": ("adamw_8bit", FORMATS),
    "bitsandbytes.optim.PagedAdamW8bit": ("adamw_8bit", FORMATS),
    "torchao.optim.AdamW8bit": ("adamw_8bit", ""),
    "torchao.optim.AdamWFp8": ("adamw_fp8", ""),
    "torchao.prototype.low_bit_optim.AdamW8bit": ("adamw_8bit", ""),
    "torchao.prototype.low_bit_optim.AdamWFp8": ("adamw_fp8", ""),
}
COSINE = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
CHUNKED = (
    "torchtune.modules.loss.CEWithChunkedOutputLoss",
    "torchtune.modules.loss.LinearCrossEntropyLoss",
)
DPO = "torchtune.rlhf.loss.DPOLoss"
LOGGERS = {"WandBLogger": "wandb", "TensorBoardLogger": "tensorboard", "MLFlowLogger": "mlflow"}
READERS = ("FullModelHFCheckpointer",)
ROWS = "over all ranks; torchtune's value is per rank: multiply it by the number of ranks"

SGD = KeyCondition(
    "optimizer._component_",
    lambda value: value == "torch.optim.SGD",
    "torch.optim.SGD",
    "with torch.optim.SGD",
)
ADAPTIVE = KeyCondition(
    "optimizer._component_",
    lambda value: value != "torch.optim.SGD",
    "torch.optim.AdamW",
    "with an optimizer other than SGD",
)


def get_torchtune_optimizer(values: SourceValues) -> str:
    """Return titanrun's name of the optimizer; adamw if there is none."""
    return OPTIMIZERS.get(str(values.get("optimizer._component_")), ("adamw", ""))[0]


def convert_torchtune_optimizer(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map AdamW, Adam and SGD of torch, torchao and bitsandbytes to their counterparts."""
    if str(value) not in OPTIMIZERS:
        return ConvertedValue({}, refused="titanrun has no such optimizer: adamw is used instead")
    name, how = OPTIMIZERS[str(value)]
    return ConvertedValue({"optimizer.name": name}, how=how)


def convert_weight_decay(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Use the default of the optimizer class if unset: 0.01 for AdamW, else 0."""
    return ConvertedValue(
        {
            "optimizer.weight_decay": (
                0.01 if get_torchtune_optimizer(values).startswith("adamw") else 0.0
            )
            if value is None
            else value
        }
    )


def convert_betas(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Split into two numbers; use 0.9 and 0.999 if unset."""
    if get_torchtune_optimizer(values) == "sgd":
        return ConvertedValue({})
    first, second = value if isinstance(value, list) and len(value) == 2 else (0.9, 0.999)
    return ConvertedValue({"optimizer.beta1": first, "optimizer.beta2": second})


def convert_fused(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map true to implementation: fused, false to foreach; the kernels differ by rounding."""
    if value is None or get_torchtune_optimizer(values) not in ("adamw", "adam"):
        return ConvertedValue({})
    return ConvertedValue({"optimizer.implementation": "fused" if value else "foreach"})


def convert_torchtune_schedule(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map the cosine, whose first step has rate 0; use constant if unset."""
    if value is None:
        return ConvertedValue({"lr_scheduler.name": "constant", "lr_scheduler.warmup_steps": 0})
    if value != COSINE:
        return ConvertedValue({}, refused="titanrun has no such schedule")
    return ConvertedValue({"lr_scheduler.name": "cosine", "lr_scheduler.first_step": 0})


def convert_num_cycles(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Accept half a cosine only."""
    return ConvertedValue(
        {}, refused="" if value in (None, 0.5) else "only half a cosine is supported"
    )


def convert_torchtune_loss(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map cross entropy (chunked if titanrun has the model's head) and DPO.

    Pairs of DPO do not attend to each other.
    """
    if value == DPO:
        return ConvertedValue(
            {
                "loss.name": "dpo",
                **({"model.attention.mask": "block_causal"} if has_native_family(values) else {}),
            }
        )
    if value in CHUNKED:
        return ConvertedValue(
            {"loss.name": "chunked_cross_entropy" if has_native_family(values) else "cross_entropy"}
        )
    if value in (None, "torch.nn.CrossEntropyLoss"):
        return ConvertedValue({"loss.name": "cross_entropy"})
    return ConvertedValue({}, refused="titanrun has no such loss")


def convert_num_chunks(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the number of chunks of the loss."""
    is_chunked = values.get("loss._component_") in CHUNKED and has_native_family(values)
    return ConvertedValue({"loss.num_chunks": value} if is_chunked and value is not None else {})


def convert_dpo_setting(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set a field of the loss dpo."""
    assert key.target is not None
    return ConvertedValue(
        {key.target: value} if values.get("loss._component_") == DPO and value is not None else {}
    )


def convert_torchtune_max_grad_norm(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Set the largest norm; map unset and inf to null."""
    return ConvertedValue(
        {"training.max_norm": None if value in ("inf", ".inf", float("inf")) else value}
    )


def convert_torchtune_gradient_accumulation(
    _: SourceKey, value: Any, values: SourceValues
) -> ConvertedValue:
    """Convert forward passes per step to sequences per step."""
    rows = values.get("batch_size")
    if (
        not isinstance(value, int)
        or not isinstance(rows, int)
        or isinstance(value, bool)
        or value <= 1
    ):
        return ConvertedValue(
            {}, refused="" if value in (None, 1) else "not a number of forward passes"
        )
    return ConvertedValue({"training.global_batch_size": value * rows}, how=ROWS)


def convert_torchtune_epochs(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set epochs, or steps if max_steps_per_epoch ends epochs earlier."""
    most = values.get("max_steps_per_epoch")
    if isinstance(most, int) and isinstance(value, int):
        return ConvertedValue(
            {"training.steps": value * most},
            how="epochs times max_steps_per_epoch; the data continue from where an epoch ended",
        )
    return ConvertedValue({"training.epochs": value})


def convert_max_steps_per_epoch(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Multiply by epochs to get the steps of the run."""
    passes = values.get("epochs")
    return ConvertedValue(
        {"training.steps": value * passes}
        if isinstance(value, int) and isinstance(passes, int)
        else {}
    )


def convert_torchtune_dtype(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map bf16 or fp32 to the dtype of weights and matrix products; refuse fp16."""
    name = {"bf16": "bfloat16", "fp32": "float32"}.get(str(value))
    if name is None:
        return ConvertedValue({}, refused="weights can be fp32 or bf16")
    return ConvertedValue({"training.dtype": name, "training.mixed_precision_param": name})


def convert_torchtune_seed(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Use 0 if unset: there is no unseeded run."""
    if value is None:
        return ConvertedValue(
            {"debug.seed": 0},
            how="without a seed torchtune's run differs each time; titanrun uses seed 0",
        )
    return ConvertedValue({"debug.seed": value})


def convert_checkpointer(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Read and write Hugging Face's format; save a checkpoint every interval of steps."""
    targets = {
        "checkpoint.enable": True,
        "checkpoint.initial_load_in_hf": True,
        "checkpoint.last_save_in_hf": True,
    }
    if str(value).rpartition(".")[2] not in READERS:
        return ConvertedValue(
            targets,
            refused="weights are read in Hugging Face's format: name such a folder (its settings "
            "are in the recipe)",
        )
    return ConvertedValue(
        targets,
        how="checkpoints are written every checkpoint.interval steps; torchtune writes them at the "
        "end of each epoch",
    )


def convert_adapters_only(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep the value if there are adapters."""
    return ConvertedValue(
        {"checkpoint.adapters_only": True} if value and get_torchtune_adapter(values) else {}
    )


def convert_resume(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Drop it, since titanrun resumes by itself; refuse a checkpoint of torchtune's own."""
    return ConvertedValue(
        {},
        refused="an unfinished torchtune run cannot be resumed: start from its weights"
        if value
        else "",
    )


def convert_torchtune_activation_checkpointing(
    _: SourceKey, value: Any, values: SourceValues
) -> ConvertedValue:
    """Recompute every layer, or some if ac_mode is selective."""
    mode = values.get("ac_mode") or ("full" if value else "none")
    return ConvertedValue({"activation_checkpoint.name": mode})


def convert_ac_option(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set which layers to recompute, or op."""
    selective = values.get("ac_mode") == "selective" and value is not None
    return ConvertedValue(
        {"activation_checkpoint.selective_ac_option": str(value)} if selective else {}
    )


def convert_metric_logger(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map Weights & Biases, TensorBoard and MLflow; files and console are always written."""
    word = str(value).rpartition(".")[2]
    if word in LOGGERS:
        return ConvertedValue({f"metrics.trackers[{LOGGERS[word]}].name": LOGGERS[word]})
    if value is None or word in ("DiskLogger", "StdoutLogger"):
        return ConvertedValue({}, how="left out: metrics.jsonl and the log are always written")
    return ConvertedValue({}, refused="titanrun has no such tracker")


def make_logger_conversion(name: str, field: str) -> Any:
    """Return a conversion to a field of one tracker."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the tracker that has it."""
        chosen = LOGGERS.get(str(values.get("metric_logger._component_")).rpartition(".")[2])
        return ConvertedValue(
            {f"metrics.trackers[{name}].{field}": value}
            if chosen == name and value is not None
            else {}
        )

    return convert


def convert_profile_cycle(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Sum idle, warmup and recorded steps to get the length of a cycle."""
    steps = [values.get(f"profiler.{name}_steps") for name in ("wait", "warmup", "active")]
    return ConvertedValue(
        {"profiling.profile_freq": sum(step for step in steps if isinstance(step, int)) or 10}
    )


def convert_determinism(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map warn and error to deterministic operations."""
    if value in (None, 0, "default"):
        return ConvertedValue({})
    return ConvertedValue(
        {
            "debug.deterministic": True,
            **({"debug.deterministic_warn_only": True} if value in (1, "warn") else {}),
        }
    )


def convert_reshard_after_forward(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map true to always, false to never."""
    return ConvertedValue(
        {"parallelism.fsdp_reshard_after_forward": "always" if value else "never"}
    )


def convert_async_checkpointing(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map true to async, false to disabled."""
    return ConvertedValue({"checkpoint.async_mode": "async" if value else "disabled"})


def reject_torchtune_if_enabled(key: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Drop it if it is off or unset, else refuse it."""
    return ConvertedValue({}, refused=key.how if value else "")


def convert_collate_fn(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Drop padding, which sequences of one length do not need; refuse other functions."""
    padded = value is None or str(value).startswith("torchtune.data.padded_collate")
    return ConvertedValue({}, refused="" if padded else "a recipe cannot contain code")


def convert_shuffle(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set whether sequences come in a seeded random order."""
    return ConvertedValue({"training.dataset.shuffle": value})
