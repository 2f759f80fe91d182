"""What axolotl's optimizers, schedules, types and trackers become."""

from typing import Any

from titanrun.recipe.migrate.axolotl_data import is_pairs
from titanrun.recipe.migrate.axolotl_model import adapter_of, is_own
from titanrun.recipe.migrate.keys import Converted, Key, Values

FORMATS = "torchao's formats of the states; they are not paged to the host"
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
BESIDE = "adapters are in fp32, and so is the base that is multiplied in bf16; axolotl keeps the base in bf16"
RANKS = "counted over all ranks; axolotl's is for each: multiply it by the number of ranks"


def optimizer_of(values: Values) -> str:
    """The optimizer's name here."""
    return OPTIMIZERS.get(str(values.get("optimizer")), ("adamw", ""))[0]


def optimizer(_: Key, value: Any, __: Values) -> Converted:
    """AdamW in several precisions, the schedule-free one and SGD have counterparts."""
    if str(value) not in OPTIMIZERS:
        return Converted({}, refused="no optimizer of titanrun: adamw stands there instead")
    name, how = OPTIMIZERS[str(value)]
    return Converted({"optimizer.name": name}, how=how)


def of_adam(field: str, otherwise: float) -> Any:
    """A conversion to a field of Adam; `otherwise` is axolotl's default."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A field of Adam; unset it is transformers' default."""
        return Converted(
            {}
            if optimizer_of(values) == "sgd"
            else {f"optimizer.{field}": otherwise if value is None else value}
        )

    return convert


def schedule(_: Key, value: Any, values: Values) -> Converted:
    """cosine, linear, constant and constant_with_warmup, whose first step has rate 0 where they warm up."""
    name = {
        "cosine": "cosine",
        "linear": "polynomial",
        "constant": "constant",
        "constant_with_warmup": "constant",
    }.get(str(value))
    if name is None:
        return Converted(
            {}, refused="schedules are cosine, linear, constant and constant_with_warmup here"
        )
    linear = {"lr_scheduler.power": 1.0} if value == "linear" else {}
    first = (
        {"lr_scheduler.warmup_steps": 0} if value == "constant" else {"lr_scheduler.first_step": 0}
    )
    return Converted({"lr_scheduler.name": name, **linear, **first})


def warmup(_: Key, value: Any, values: Values) -> Converted:
    """Steps; where only a share is written, it is taken of max_steps."""
    if values.get("lr_scheduler") == "constant":
        return Converted({})
    if value is not None:
        return Converted({"lr_scheduler.warmup_steps": 2 if value == 1 else value})
    if values.get("warmup_ratio") is not None:
        return Converted({})
    steps = values.get("max_steps")
    if isinstance(steps, int):
        return Converted({"lr_scheduler.warmup_steps": at_least_two(min(0.03 * steps, 100))})
    return Converted(
        {"lr_scheduler.warmup_steps": "auto"},
        how="a tenth of the steps, 200 at most; axolotl takes 3%, 100 at most",
    )


def at_least_two(steps: float) -> int:
    """Whole steps, for axolotl never one alone."""
    return 2 if int(steps) == 1 else int(steps)


def warmup_share(_: Key, value: Any, values: Values) -> Converted:
    """Of max_steps; of epochs, whose steps the data decide, it is refused."""
    if value is None or values.get("warmup_steps") is not None:
        return Converted({})
    if isinstance(values.get("max_steps"), int):
        return Converted(
            {"lr_scheduler.warmup_steps": at_least_two(value * values["max_steps"])}
            if isinstance(value, int | float)
            else {}
        )
    return Converted(
        {},
        refused="how many steps epochs have is known from the data: write lr_scheduler.warmup_steps",
    )


def least_rate(_: Key, value: Any, values: Values) -> Converted:
    """The floor of the cosine."""
    return Converted(
        {"lr_scheduler.min_lr_factor": value}
        if value and values.get("lr_scheduler") == "cosine"
        else {}
    )


def accumulation(_: Key, value: Any, values: Values) -> Converted:
    """Passes of a step become the rows of a step."""
    rows = values.get("micro_batch_size")
    if (
        not isinstance(value, int)
        or not isinstance(rows, int)
        or isinstance(value, bool)
        or value <= 1
    ):
        return Converted({}, refused="" if value in (None, 1) else "no number of passes")
    return Converted({"training.global_batch_size": value * rows}, how=RANKS)


def epochs(_: Key, value: Any, values: Values) -> Converted:
    """Whole passes over the data, where max_steps does not say how long the run is."""
    if values.get("max_steps"):
        return Converted({}, how="left out: max_steps says how long the run is")
    if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
        return Converted({"training.epochs": int(value)})
    return Converted({}, refused="passes are whole: write training.steps")


def norm(_: Key, value: Any, __: Values) -> Converted:
    """The largest norm; 0 is null."""
    return Converted({} if value is None else {"training.max_norm": value or None})


def types(_: Key, value: Any, values: Values) -> Converted:
    """bf16 keeps and multiplies weights in bf16, as axolotl loads them; false is fp32."""
    if values.get("float32") or value is False:
        return Converted({"training.dtype": "float32", "training.mixed_precision_param": "float32"})
    name = {"training.mixed_precision_param": "bfloat16"}
    if adapter_of(values):
        return Converted(name, how=BESIDE)
    return Converted({"training.dtype": "bfloat16", **name})


def half(_: Key, value: Any, __: Values) -> Converted:
    """fp16 is refused."""
    return Converted({}, refused="weights are kept in fp32 or bf16" if value else "")


def recompute(_: Key, value: Any, __: Values) -> Converted:
    """Every layer; offload, which moves what is kept to the host, is refused."""
    if value in ("offload", "offload_disk"):
        return Converted(
            {"activation_checkpoint.name": "full"}, how="activations stay on the device"
        )
    return Converted({"activation_checkpoint.name": "full" if value else "none"})


def sharding(_: Key, value: Any, __: Values) -> Converted:
    """Of it, offload_params and reshard_after_forward are carried over; each family shards blocks of its own."""
    if not isinstance(value, dict):
        return Converted({})
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
    return Converted(
        targets, how="" if targets else "left out: each family shards blocks of its own with FSDP2"
    )


def loss(_: Key, value: Any, values: Values) -> Converted:
    """dpo; other kinds have no counterpart among the losses."""
    if value in (None, ""):
        return Converted({})
    if value != "dpo":
        return Converted(
            {},
            refused="of these only dpo is a loss; titanrun's reinforcement learning has a section of its own, rl",
        )
    return Converted(
        {"loss.name": "dpo", **({"model.attention.mask": "block_causal"} if is_own(values) else {})}
    )


def of_dpo(field: str) -> Any:
    """A conversion to a field of the loss dpo."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A setting of dpo."""
        return Converted({f"loss.{field}": value} if is_pairs(values) and value is not None else {})

    return convert


def dpo_kind(_: Key, value: Any, __: Values) -> Converted:
    """The sigmoid only."""
    kinds = [value] if isinstance(value, str) else value
    return Converted(
        {}, refused="" if kinds in (None, ["sigmoid"]) else "dpo has the sigmoid of the paper"
    )


def tracker(name: str, field: str) -> Any:
    """A conversion to a field of a tracker, which is named by it."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A field of the tracker, which is there because of it."""
        switched_off = values.get(f"use_{name}") is False or (
            name == "wandb" and values.get("wandb_mode") == "disabled"
        )
        if not value or switched_off:
            return Converted({})
        return Converted(
            {f"metrics.trackers[{name}].name": name, f"metrics.trackers[{name}].{field}": value}
        )

    return convert


def wandb_mode(_: Key, value: Any, values: Values) -> Converted:
    """online or offline; disabled names no tracker."""
    there = values.get("wandb_project") and value in ("online", "offline")
    return Converted({"metrics.trackers[wandb].mode": value} if there else {})


def tensorboard(_: Key, value: Any, __: Values) -> Converted:
    """The switch becomes a tracker in the list."""
    return Converted({"metrics.trackers[tensorboard].name": "tensorboard"} if value else {})


def steps_or_none(key: Key, value: Any, __: Values) -> Converted:
    """Whole numbers of steps; a share of the run is refused."""
    if value is None:
        return Converted({})
    if isinstance(value, float) and value < 1:
        return Converted({}, refused="a share of the run: write steps")
    return Converted({key.target: value} if key.target else {})


def kept(_: Key, value: Any, __: Values) -> Converted:
    """Unset is 4."""
    return Converted({"checkpoint.keep_latest_k": value or 4})


def refused_if_on(key: Key, value: Any, __: Values) -> Converted:
    """What is off, or unset, was not asked for."""
    return Converted({}, refused=key.how if value else "")


def seed(_: Key, value: Any, __: Values) -> Converted:
    """Unset is 42."""
    return Converted({"debug.seed": 42 if value is None else value})


def compiled(_: Key, value: Any, __: Values) -> Converted:
    """true or false; auto, which leaves it to axolotl, is false."""
    return Converted({"compile.enable": value is True})


def prefetched(_: Key, value: Any, values: Values) -> Converted:
    """Batches that each loading process has ready."""
    return Converted(
        {"training.dataloader.prefetch_factor": value}
        if value and values.get("dataloader_num_workers")
        else {}
    )


def types_if_on(key: Key, value: Any, values: Values) -> Converted:
    """As bf16, where it is on."""
    return types(key, "auto", values) if value else Converted({})


def backend(_: Key, value: Any, values: Values) -> Converted:
    """The back end of torch.compile, where that is on."""
    return Converted(
        {"compile.backend": value} if value and values.get("torch_compile") is True else {}
    )


def wandb_field(field: str) -> Any:
    """A conversion to a field of Weights & Biases, where wandb_project asks for it."""

    def convert(key: Key, value: Any, values: Values) -> Converted:
        """A field of the tracker that wandb_project asks for."""
        return (
            tracker("wandb", field)(key, value, values)
            if values.get("wandb_project")
            else Converted({})
        )

    return convert
