"""Conversion of axolotl's optimizers, schedules, dtypes and trackers."""

import re
from math import ceil
from pathlib import Path
from typing import Any

from titanrun.recipe.migrate.axolotl_model import get_axolotl_adapter
from titanrun.recipe.migrate.key_mapping import ConvertedValue, SourceKey, SourceValues

FORMATS = "the states have torchao's formats and are not paged to the host"
OPTIMIZERS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused"), ("adamw", "")
    ),
    **dict.fromkeys(
        ("paged_adamw", "paged_adamw_32bit", "adamw_anyprecision"),
        ("adamw", "the states are in fp32, on the device"),
    ),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_8bit"), ("adamw_8bit", FORMATS)),
    "adamw_torch_8bit": ("adamw_8bit", ""),
    "ao_adamw_8bit": ("adamw_8bit", ""),
    "ao_adamw_fp8": ("adamw_fp8", ""),
    "schedule_free_adamw": ("schedule_free_adamw", ""),
    "sgd": ("sgd", ""),
}
OTHER_SCHEDULE = (
    "schedules are cosine, linear, constant and constant_with_warmup: the recipe has the default "
    "of titanrun, warmup_stable_decay"
)
NO_FP16 = (
    "weights and products are in fp32 or bf16: set training.mixed_precision_param: bfloat16 instead"
)
ZERO_STAGE = re.compile(r"z(?:ero)?_?([0-3])")
"""Stage of ZeRO in the name of a file for DeepSpeed, such as ds_z3_config.json."""
OTHER_SHARDING = "titanrun shards with FSDP2 over all ranks: see section parallelism"
RANKS = "over all ranks; there it is per rank: multiply it by the number of ranks"


def get_axolotl_optimizer(values: SourceValues) -> str:
    """Return titanrun's name of the optimizer."""
    return OPTIMIZERS.get(str(values.get("optimizer")), ("adamw", ""))[0]


def convert_axolotl_optimizer(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map AdamW in several precisions, schedule-free AdamW and SGD to their counterparts."""
    if str(value) not in OPTIMIZERS:
        return ConvertedValue({}, refused="titanrun has no such optimizer: adamw is used instead")
    name, how = OPTIMIZERS[str(value)]
    return ConvertedValue({"optimizer.name": name}, how=how)


def make_adam_conversion(field: str, otherwise: float) -> Any:
    """Return a conversion to a field of Adam; `otherwise` is axolotl's default."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of Adam; use transformers' default if unset."""
        return ConvertedValue(
            {}
            if get_axolotl_optimizer(values) == "sgd"
            else {f"optimizer.{field}": otherwise if value is None else value}
        )

    return convert


def convert_axolotl_schedule(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Map cosine, also with restarts, linear, constant and constant_with_warmup.

    With warmup the first step has rate 0.
    """
    name = {
        "cosine": "cosine",
        # the same with one cycle, its default
        "cosine_with_restarts": "cosine",
        "linear": "polynomial",
        "constant": "constant",
        "constant_with_warmup": "constant",
    }.get(str(value))
    if name is None:
        return ConvertedValue({}, refused=OTHER_SCHEDULE)
    linear = {"lr_scheduler.power": 1.0} if value == "linear" else {}
    first = (
        {"lr_scheduler.warmup_steps": 0} if value == "constant" else {"lr_scheduler.first_step": 0}
    )
    return ConvertedValue({"lr_scheduler.name": name, **linear, **first})


def convert_axolotl_warmup(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the steps; if only a ratio is written, it is a ratio of max_steps."""
    if values.get("lr_scheduler") == "constant":
        return ConvertedValue({})
    if value is not None:
        how = "axolotl makes 2 of a single step" if value == 1 else ""
        return ConvertedValue({"lr_scheduler.warmup_steps": 2 if value == 1 else value}, how=how)
    if values.get("warmup_ratio") is not None:
        return ConvertedValue({})
    steps = values.get("max_steps")
    if isinstance(steps, int):
        return ConvertedValue(
            {"lr_scheduler.warmup_steps": round_to_at_least_two(min(0.03 * steps, 100))}
        )
    return ConvertedValue(
        {"lr_scheduler.warmup_steps": "auto"},
        how="a tenth of the steps, at most 200; axolotl uses 3%, at most 100",
    )


def round_to_at_least_two(steps: float) -> int:
    """Return whole steps, for axolotl never just one."""
    return 2 if int(steps) == 1 else int(steps)


def convert_warmup_ratio(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Multiply by max_steps; without it keep the share, rounded up instead of down."""
    if value is None or values.get("warmup_steps") is not None:
        return ConvertedValue({})
    if isinstance(values.get("max_steps"), int):
        return ConvertedValue(
            {"lr_scheduler.warmup_steps": round_to_at_least_two(value * values["max_steps"])}
            if isinstance(value, int | float)
            else {}
        )
    return ConvertedValue(
        {"lr_scheduler.warmup_ratio": value}, how="rounded up to whole steps, not down"
    )


def convert_min_lr(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the floor of the cosine."""
    return ConvertedValue(
        {"lr_scheduler.min_lr_factor": value}
        if value and values.get("lr_scheduler") == "cosine"
        else {}
    )


def convert_axolotl_gradient_accumulation(
    _: SourceKey, value: Any, values: SourceValues
) -> ConvertedValue:
    """Convert forward passes per step to sequences per step."""
    rows = values.get("micro_batch_size")
    if (
        not isinstance(value, int)
        or not isinstance(rows, int)
        or isinstance(value, bool)
        or value <= 1
    ):
        return ConvertedValue(
            {}, refused="" if value in (None, 1) else "not a number of forward passes"
        )
    return ConvertedValue({"training.global_batch_size": value * rows}, how=RANKS)


def convert_axolotl_epochs(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set whole epochs, parts rounded up, unless max_steps sets the length of the run."""
    if values.get("max_steps"):
        return ConvertedValue({}, how="left out: max_steps sets the length of the run")
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        return ConvertedValue({}, refused="not a number of epochs: write training.steps")
    is_whole = value == int(value)
    rounded = "rounded up, since epochs are whole: training.steps trains a part of one"
    return ConvertedValue({"training.epochs": ceil(value)}, how="" if is_whole else rounded)


def convert_axolotl_max_grad_norm(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Set the largest norm; map 0 to null."""
    return ConvertedValue({} if value is None else {"training.max_norm": value or None})


def convert_dtypes(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep and multiply weights in bf16 if set, as axolotl loads them; map false to fp32."""
    if values.get("float32") or value is False:
        return ConvertedValue(
            {"training.dtype": "float32", "training.mixed_precision_param": "float32"}
        )
    name = {"training.mixed_precision_param": "bfloat16"}
    # with adapters the frozen base has the compute dtype, and the adapters are in fp32, as there
    stored = {} if get_axolotl_adapter(values) else {"training.dtype": "bfloat16"}
    return ConvertedValue({**stored, **name})


def convert_fp16(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Refuse fp16."""
    return ConvertedValue({}, refused=NO_FP16 if value else "")


def convert_axolotl_activation_checkpointing(
    _: SourceKey, value: Any, __: SourceValues
) -> ConvertedValue:
    """Recompute every layer; offload to the host is not carried over."""
    if value in ("offload", "offload_disk"):
        return ConvertedValue(
            {"activation_checkpoint.name": "full"}, how="activations stay on the device"
        )
    return ConvertedValue({"activation_checkpoint.name": "full" if value else "none"})


def convert_fsdp_config(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Carry over offload_params and reshard_after_forward.

    Each model family shards its own blocks.
    """
    if not isinstance(value, dict):
        return ConvertedValue({})
    found = {key.removeprefix("fsdp_"): inside for key, inside in value.items()}
    targets: dict[str, Any] = {}
    if found.get("offload_params"):
        targets["training.enable_cpu_offload"] = True
    if "reshard_after_forward" in found:
        targets["parallelism.fsdp_reshard_after_forward"] = (
            "always" if found["reshard_after_forward"] else "never"
        )
    if found.get("activation_checkpointing"):
        targets["activation_checkpoint.name"] = "full"
    return ConvertedValue(
        targets,
        how="" if targets else "left out: each model family shards its own blocks with FSDP2",
    )


def convert_deepspeed(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map ZeRO by the name of its file: stages 1 to 3 are FSDP2, and offload is kept."""
    if not value:
        return ConvertedValue({})
    name = Path(str(value)).stem.lower()
    found = ZERO_STAGE.search(name)
    stage = int(found[1]) if found else 0
    if not stage:
        return ConvertedValue({}, refused=OTHER_SHARDING)
    targets = {"parallelism.fsdp_reshard_after_forward": "never"} if stage < 3 else {}
    offloaded = {"training.enable_cpu_offload": True} if "offload" in name else {}
    how = f"FSDP2 shards over all ranks instead of ZeRO stage {stage}"
    is_same = not targets and not offloaded
    return ConvertedValue({**targets, **offloaded}, how=f"left out: {how}" if is_same else how)


def make_tracker_conversion(name: str, field: str) -> Any:
    """Return a conversion to a field of a tracker, which adds that tracker."""

    def convert(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the tracker, which it adds."""
        switched_off = values.get(f"use_{name}") is False or (
            name == "wandb" and values.get("wandb_mode") == "disabled"
        )
        if not value or switched_off:
            return ConvertedValue({})
        return ConvertedValue(
            {f"metrics.trackers[{name}].name": name, f"metrics.trackers[{name}].{field}": value}
        )

    return convert


def convert_wandb_mode(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Keep online or offline; disabled adds no tracker."""
    there = values.get("wandb_project") and value in ("online", "offline")
    return ConvertedValue({"metrics.trackers[wandb].mode": value} if there else {})


def convert_axolotl_tensorboard(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Map the switch to a tracker in the list."""
    return ConvertedValue({"metrics.trackers[tensorboard].name": "tensorboard"} if value else {})


def convert_step_interval(key: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Keep a whole number; refuse a fraction, as of the run's steps."""
    if value is None:
        return ConvertedValue({})
    if isinstance(value, float) and value < 1:
        return ConvertedValue({}, refused="a fraction of the run: write steps")
    return ConvertedValue({key.target: value} if key.target else {})


def convert_save_total_limit(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Use 4 if unset."""
    return ConvertedValue({"checkpoint.keep_latest_k": value or 4})


def reject_axolotl_if_enabled(key: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Drop it if it is off or unset, else refuse it."""
    return ConvertedValue({}, refused=key.how if value else "")


def convert_axolotl_seed(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Use 42 if unset."""
    return ConvertedValue({"debug.seed": 42 if value is None else value})


def convert_torch_compile(_: SourceKey, value: Any, __: SourceValues) -> ConvertedValue:
    """Keep true or false; map auto, which leaves it to axolotl, to false."""
    return ConvertedValue({"compile.enable": value is True})


def convert_prefetch_factor(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the number of batches that each dataloader worker keeps ready."""
    return ConvertedValue(
        {"training.dataloader.prefetch_factor": value}
        if value and values.get("dataloader_num_workers")
        else {}
    )


def convert_dtypes_if_enabled(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Convert it like bf16 if it is on."""
    return convert_dtypes(key, "auto", values) if value else ConvertedValue({})


def convert_compile_backend(_: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
    """Set the backend of torch.compile if that is on."""
    return ConvertedValue(
        {"compile.backend": value} if value and values.get("torch_compile") is True else {}
    )


def make_wandb_conversion(field: str) -> Any:
    """Return a conversion to a field of Weights & Biases, applied if wandb_project is set."""

    def convert(key: SourceKey, value: Any, values: SourceValues) -> ConvertedValue:
        """Set a field of the tracker that wandb_project adds."""
        return (
            make_tracker_conversion("wandb", field)(key, value, values)
            if values.get("wandb_project")
            else ConvertedValue({})
        )

    return convert
