"""What torchtune's optimizers, schedules, types and loggers become."""

from typing import Any

from titanrun.recipe.migrate.keys import Converted, Key, Needs, Values
from titanrun.recipe.migrate.tune_model import adapter, is_own_family

FORMATS = "torchao's formats of the states; they are not paged to the host"
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
ROWS = "counted over all ranks; torchtune's is for each: multiply it by the number of ranks"

SGD = Needs(
    "optimizer._component_",
    lambda value: value == "torch.optim.SGD",
    "torch.optim.SGD",
    "with torch.optim.SGD",
)
ADAPTIVE = Needs(
    "optimizer._component_",
    lambda value: value != "torch.optim.SGD",
    "torch.optim.AdamW",
    "with another than SGD",
)


def optimizer_of(values: Values) -> str:
    """The optimizer's name here; adamw where there is none."""
    return OPTIMIZERS.get(str(values.get("optimizer._component_")), ("adamw", ""))[0]


def optimizer(_: Key, value: Any, __: Values) -> Converted:
    """Torch's, torchao's and bitsandbytes' AdamW, Adam and SGD have counterparts."""
    if str(value) not in OPTIMIZERS:
        return Converted({}, refused="no optimizer of titanrun: adamw stands there instead")
    name, how = OPTIMIZERS[str(value)]
    return Converted({"optimizer.name": name}, how=how)


def weight_decay(_: Key, value: Any, values: Values) -> Converted:
    """Unset it is what the class has: 0.01 for AdamW, else 0."""
    return Converted(
        {
            "optimizer.weight_decay": (0.01 if optimizer_of(values).startswith("adamw") else 0.0)
            if value is None
            else value
        }
    )


def betas(key: Key, value: Any, values: Values) -> Converted:
    """Two numbers; unset they are 0.9 and 0.999."""
    if optimizer_of(values) == "sgd":
        return Converted({})
    first, second = value if isinstance(value, list) and len(value) == 2 else (0.9, 0.999)
    return Converted({"optimizer.beta1": first, "optimizer.beta2": second})


def fused(_: Key, value: Any, values: Values) -> Converted:
    """true is implementation: fused, false foreach; the kernels differ by rounding."""
    if value is None or optimizer_of(values) not in ("adamw", "adam"):
        return Converted({})
    return Converted({"optimizer.implementation": "fused" if value else "foreach"})


def schedule(_: Key, value: Any, __: Values) -> Converted:
    """The one schedule of torchtune, a cosine, whose first step has rate 0; none is constant."""
    if value is None:
        return Converted({"lr_scheduler.name": "constant", "lr_scheduler.warmup_steps": 0})
    if value != COSINE:
        return Converted({}, refused="no schedule of titanrun's by that name")
    return Converted({"lr_scheduler.name": "cosine", "lr_scheduler.first_step": 0})


def cycles(_: Key, value: Any, __: Values) -> Converted:
    """Half a cosine only."""
    return Converted({}, refused="" if value in (None, 0.5) else "half a cosine is the only one")


def loss(_: Key, value: Any, values: Values) -> Converted:
    """The cross entropy, in chunks where titanrun has the model's head, or DPO, whose pairs do not see each other."""
    if value == DPO:
        return Converted(
            {
                "loss.name": "dpo",
                **({"model.attention.mask": "block_causal"} if is_own_family(values) else {}),
            }
        )
    if value in CHUNKED:
        return Converted(
            {"loss.name": "chunked_cross_entropy" if is_own_family(values) else "cross_entropy"}
        )
    if value in (None, "torch.nn.CrossEntropyLoss"):
        return Converted({"loss.name": "cross_entropy"})
    return Converted({}, refused="no loss of titanrun's")


def chunks(_: Key, value: Any, values: Values) -> Converted:
    """The chunks of the loss."""
    is_chunked = values.get("loss._component_") in CHUNKED and is_own_family(values)
    return Converted({"loss.num_chunks": value} if is_chunked and value is not None else {})


def of_dpo(key: Key, value: Any, values: Values) -> Converted:
    """A setting of DPO."""
    assert key.target is not None
    return Converted(
        {key.target: value} if values.get("loss._component_") == DPO and value is not None else {}
    )


def norm(_: Key, value: Any, __: Values) -> Converted:
    """The largest norm; unset, or inf, is null."""
    return Converted(
        {"training.max_norm": None if value in ("inf", ".inf", float("inf")) else value}
    )


def accumulation(_: Key, value: Any, values: Values) -> Converted:
    """Passes of a step become the rows of a step."""
    rows = values.get("batch_size")
    if (
        not isinstance(value, int)
        or not isinstance(rows, int)
        or isinstance(value, bool)
        or value <= 1
    ):
        return Converted({}, refused="" if value in (None, 1) else "no number of passes")
    return Converted({"training.global_batch_size": value * rows}, how=ROWS)


def epochs(_: Key, value: Any, values: Values) -> Converted:
    """Passes over the data, or steps where max_steps_per_epoch ends them earlier."""
    most = values.get("max_steps_per_epoch")
    if isinstance(most, int) and isinstance(value, int):
        return Converted(
            {"training.steps": value * most},
            how="epochs times max_steps_per_epoch; the data go on where an epoch ended",
        )
    return Converted({"training.epochs": value})


def most_steps(_: Key, value: Any, values: Values) -> Converted:
    """The steps of the run are epochs times this."""
    passes = values.get("epochs")
    return Converted(
        {"training.steps": value * passes}
        if isinstance(value, int) and isinstance(passes, int)
        else {}
    )


def dtype(_: Key, value: Any, __: Values) -> Converted:
    """bf16 or fp32, of weights and products; fp16 is refused."""
    name = {"bf16": "bfloat16", "fp32": "float32"}.get(str(value))
    if name is None:
        return Converted({}, refused="weights are kept in fp32 or bf16")
    return Converted({"training.dtype": name, "training.mixed_precision_param": name})


def seed(_: Key, value: Any, __: Values) -> Converted:
    """Unset is 0: there is no unseeded run."""
    if value is None:
        return Converted(
            {"debug.seed": 0},
            how="without a seed torchtune's run differs each time; here it is seed 0",
        )
    return Converted({"debug.seed": value})


def checkpointer(_: Key, value: Any, __: Values) -> Converted:
    """Hugging Face's format is read and written; checkpoints come every interval of steps."""
    targets = {
        "checkpoint.enable": True,
        "checkpoint.initial_load_in_hf": True,
        "checkpoint.last_save_in_hf": True,
    }
    if str(value).rpartition(".")[2] not in READERS:
        return Converted(
            targets,
            refused="weights are read in Hugging Face's format: name such a folder (its settings stand there)",
        )
    return Converted(
        targets,
        how="checkpoints are written every checkpoint.interval steps; torchtune's at the end of each epoch",
    )


def adapters_only(_: Key, value: Any, values: Values) -> Converted:
    """The same, where there are adapters."""
    return Converted({"checkpoint.adapters_only": True} if value and adapter(values) else {})


def resume(_: Key, value: Any, __: Values) -> Converted:
    """A run here goes on by itself; a checkpoint of torchtune's own cannot."""
    return Converted(
        {},
        refused="an unfinished run of torchtune cannot be gone on with: start from its weights"
        if value
        else "",
    )


def recompute(_: Key, value: Any, values: Values) -> Converted:
    """Every layer, or with ac_mode selective some."""
    mode = values.get("ac_mode") or ("full" if value else "none")
    return Converted({"activation_checkpoint.name": mode})


def recompute_option(_: Key, value: Any, values: Values) -> Converted:
    """Which layers, or op."""
    selective = values.get("ac_mode") == "selective" and value is not None
    return Converted({"activation_checkpoint.selective_ac_option": str(value)} if selective else {})


def logger(_: Key, value: Any, __: Values) -> Converted:
    """Weights & Biases, TensorBoard and MLflow; files and the console are always written."""
    word = str(value).rpartition(".")[2]
    if word in LOGGERS:
        return Converted({f"metrics.trackers[{LOGGERS[word]}].name": LOGGERS[word]})
    if value is None or word in ("DiskLogger", "StdoutLogger"):
        return Converted({}, how="left out: metrics.jsonl and the log are always written")
    return Converted({}, refused="no tracker of titanrun's")


def of_logger(name: str, field: str) -> Any:
    """A conversion to a field of one tracker."""

    def convert(_: Key, value: Any, values: Values) -> Converted:
        """A field of the tracker that has it."""
        chosen = LOGGERS.get(str(values.get("metric_logger._component_")).rpartition(".")[2])
        return Converted(
            {f"metrics.trackers[{name}].{field}": value}
            if chosen == name and value is not None
            else {}
        )

    return convert


def profile_cycle(_: Key, value: Any, values: Values) -> Converted:
    """A cycle is as long as its idle, warming and recorded steps together."""
    steps = [values.get(f"profiler.{name}_steps") for name in ("wait", "warmup", "active")]
    return Converted(
        {"profiling.profile_freq": sum(step for step in steps if isinstance(step, int)) or 10}
    )


def determinism(_: Key, value: Any, __: Values) -> Converted:
    """warn and error make operations deterministic."""
    if value in (None, 0, "default"):
        return Converted({})
    return Converted(
        {
            "debug.deterministic": True,
            **({"debug.deterministic_warn_only": True} if value in (1, "warn") else {}),
        }
    )


def sharding(_: Key, value: Any, __: Values) -> Converted:
    """true is always, false never."""
    return Converted({"parallelism.fsdp_reshard_after_forward": "always" if value else "never"})


def asynchronous(_: Key, value: Any, __: Values) -> Converted:
    """true is async."""
    return Converted({"checkpoint.async_mode": "async" if value else "disabled"})


def refused_if_on(key: Key, value: Any, __: Values) -> Converted:
    """What is off, or unset, was not asked for."""
    return Converted({}, refused=key.how if value else "")


def collate(_: Key, value: Any, __: Values) -> Converted:
    """Padding, which rows of one length need no more; another function is refused."""
    padded = value is None or str(value).startswith("torchtune.data.padded_collate")
    return Converted({}, refused="" if padded else "a recipe holds no code")


def shuffled(_: Key, value: Any, values: Values) -> Converted:
    """Whether rows come in a seeded random order."""
    return Converted({"training.dataset.shuffle": value})
