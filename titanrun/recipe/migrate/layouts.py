"""The layouts of torchtitan's config dumps after 0.2.2, brought back to the keys of that release."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.config.problems import DataPath, Origin
from titanrun.config.tree import Node, find, plain
from titanrun.recipe.migrate.keys import Key, moved, refused, same, unread

# sections and keys that moved; a trailing dot stands for a whole section
MOVES: dict[str, str] = {
    "dump_folder": "job.dump_folder",
    "hf_assets_path": "model.hf_assets_path",
    "model_spec.name": "model.name",
    "model_spec.flavor": "model.flavor",
    "model_converters.print_after_conversion": "model.print_after_conversion",
    "dataloader.dataset": "training.dataset",
    "dataloader.dataset_path": "training.dataset_path",
    "dataloader.num_workers": "training.dataloader.num_workers",
    "dataloader.persistent_workers": "training.dataloader.persistent_workers",
    "dataloader.pin_memory": "training.dataloader.pin_memory",
    "dataloader.prefetch_factor": "training.dataloader.prefetch_factor",
    "validator.dataloader.dataset": "validation.dataset",
    "validator.dataloader.dataset_path": "validation.dataset_path",
    "validator.": "validation.",
    "profiler.": "profiling.",
    "training.max_context_length": "training.seq_len",
    "compile.enable_async_tensor_parallel": "parallelism.enable_async_tensor_parallel",
    "debug.print_config": "job.print_config",
    "debug.save_config_file": "job.save_config_file",
}
GRAIN = "a setting of torchtitan's later data pipeline, which titanrun has no counterpart of"
ORDER = "the order of the data follows debug.seed"
TRACES = "a trace is written at the end of every cycle, and a snapshot too"

# what only later versions have
LATER: tuple[Key, ...] = (
    moved("dataloader.infinite", True, "training.dataset.repeat"),
    moved("dataloader.repeat", True, "training.dataset.repeat"),
    moved("dataloader.shuffle", True, "training.dataset.shuffle"),
    unread("dataloader.seed", 42, ORDER),
    refused("dataloader.streaming_shuffle_buffer_size", 1000, GRAIN),
    refused("dataloader.read_options", None, GRAIN),
    refused("dataloader.num_prefetch_batches", 2, GRAIN),
    refused("dataloader.collator", None, GRAIN),
    unread("validation.dataloader.infinite", False, "validation takes the same batches each time"),
    unread("training.disable_cuda_graphs", False, "titanrun captures no CUDA graphs"),
    refused(
        "parallelism.enable_fsdp_symm_mem",
        False,
        "titanrun gathers weights without symmetric memory",
    ),
    same("parallelism.enable_sequence_parallel", True),
    unread(
        "parallelism.spmd_backend",
        "spmd_types",
        "a choice between two implementations of torchtitan",
    ),
    refused(
        "parallelism.context_parallel_ptrr_mask_key", None, "the mask is chosen by the model family"
    ),
    same("debug.detect_anomaly", False),
    unread("debug.spmd_typechecking", False, "a check of torchtitan's own code"),
    unread(
        "debug.enable_structured_logging",
        True,
        "metrics.jsonl and the logs of each rank are always written",
    ),
    refused("debug.batch_invariant", False, "torchtitan refuses it in pretraining too"),
    refused("profiling.profiler_repeat", None, TRACES),
    refused("profiling.profiler_skip_first", None, TRACES),
    refused("profiling.profiler_skip_first_wait", None, TRACES),
    refused("profiling.memory_snapshot_freq", None, TRACES),
    refused("profiling.memory_snapshot_max_entries", 1_000_000, TRACES),
    refused("optimizer.optimizer_factory_kwargs_by_name", {}, "each optimizer has its own fields"),
    refused(
        "override.imports",
        [],
        "recipes import nothing: an installed plug-in, listed under plugins, adds components",
    ),
    same("loss.name", "cross_entropy"),
    same("loss.num_chunks", 8),
    unread("loss.global_vocab_size", None, "the model knows its vocabulary"),
    moved("lora.rank", 8, "converters[lora].rank"),
    moved("lora.alpha", 16.0, "converters[lora].alpha"),
    moved("lora.target_modules", None, "converters[lora].target_modules"),
    unread("quantize.linear.float8.model_compile_enabled", False, "compile.enable says it"),
    unread("model_spec.model", None, "the flavor stands for all sizes"),
    unread("tokenizer", None, "titanrun takes the tokenizer in model.hf_assets_path"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """One value of a dump, under the path that 0.2.2 has for it."""

    path: str
    written: str
    value: Any
    origin: Origin
    how: str = ""
    refused: str = ""
    original: Any = None


def as_release(root: Node) -> Iterator[Found]:
    """Every value of a dump in the layout of 0.2.2."""
    yield from walked(root, ())
    if find(root, ("job",)) is None and find(root, ("model_spec", "name")) is None:
        why = "this dump does not say which model it trained: add model.name and model.flavor"
        yield Found("model.name", "model_spec", None, root.origin, refused=why)


def walked(node: Node, path: DataPath) -> Iterator[Found]:
    """The values below a node; a section that changed its shape goes to its own reader."""
    written = ".".join(map(str, path))
    reader = READERS.get(written)
    if reader is not None and (found := reader(node)) is not None:
        yield from found
    elif isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from walked(child, (*path, key))
    elif not isinstance(node.value, dict):
        yield leaf(written, node)


def leaf(written: str, node: Node, path: str | None = None, **words: Any) -> Found:
    """One value, under `path` or where its key moved from."""
    return Found(path or before(written), written, plain(node), node.key or node.origin, **words)


def before(written: str) -> str:
    """The path that 0.2.2 has for a key of a later version."""
    if written in MOVES:
        return MOVES[written]
    for new, old in MOVES.items():
        if new.endswith(".") and written.startswith(new):
            return old + written.removeprefix(new)
    return written


def read_model(node: Node) -> list[Found]:
    """The sizes, which the flavor stands for."""
    return [leaf("model_spec.model", Node("...", node.origin, node.key))]


def read_tokenizer(node: Node) -> list[Found]:
    """The tokenizer's config as a whole."""
    return [leaf("tokenizer", Node("...", node.origin, node.key))]


def read_loss(node: Node) -> list[Found] | None:
    """The loss; its kind is seen from its fields, since a dump does not name it."""
    if not isinstance(node.value, dict):
        return None
    if "mtp_scale" in node.value:
        return [
            leaf(
                "loss",
                Node("...", node.origin, node.key),
                refused="multi-token prediction is not migrated",
            )
        ]
    found = [leaf(f"loss.{key}", child) for key, child in node.value.items() if key != "loss_fn"]
    if "num_chunks" in node.value:
        found.insert(
            0, leaf("loss", Node("chunked_cross_entropy", node.origin, node.key), "loss.name")
        )
    return found


def read_training(node: Node) -> list[Found] | None:
    """Token budgets as rows: later versions count tokens where 0.2.2 counts rows of seq_len."""
    values = plain(node)
    if (
        not isinstance(node.value, dict)
        or not isinstance(values, dict)
        or "num_tokens_per_microbatch_per_dp_rank" not in values
    ):
        return None
    found = [leaf(f"training.{key}", child) for key, child in node.value.items() if key not in ROWS]
    for key in ROWS:
        if key in node.value:
            found.append(rows(key, node.value[key], values.get("max_context_length")))
    return found


ROWS = {
    "num_tokens_per_microbatch_per_dp_rank": "training.local_batch_size",
    "num_tokens_per_train_step": "training.global_batch_size",
}


def rows(key: str, node: Node, length: Any) -> Found:
    """A number of tokens as a number of rows."""
    tokens = node.value
    written = f"training.{key}"
    if tokens == -1:
        return leaf(written, node, ROWS[key])
    if not isinstance(tokens, int) or not isinstance(length, int) or length < 1 or tokens % length:
        return leaf(
            written,
            node,
            ROWS[key],
            refused=f"{tokens} tokens are no whole number of rows of {length}",
        )
    counted = Node(tokens // length, node.origin, node.key)
    how = f"{tokens} tokens are {tokens // length} rows of {length}, no longer packed across rows"
    return leaf(written, counted, ROWS[key], how=how, original=tokens)


def read_activation_checkpoint(node: Node) -> list[Found] | None:
    """The tagged choice, of which a dump keeps the fields only."""
    here = "activation_checkpoint"
    if node.value is None:
        return [leaf(here, Node("none", node.origin, node.key), f"{here}.mode")]
    if not isinstance(node.value, dict) or "mode" in node.value:
        return None
    fields = node.value
    moved_fields = {
        "force_recompute_mm_shapes_by_fqns": "per_op_sac_force_recompute_mm_shapes_by_fqns"
    }
    found = [
        leaf(f"{here}.{key}", child, f"{here}.{moved_fields.get(key, key)}")
        for key, child in fields.items()
    ]
    if "memory_budget" in fields:
        return [leaf(here, Node("memory_budget", node.origin, node.key), f"{here}.mode"), *found]
    if "force_recompute_mm_shapes_by_fqns" in fields:
        choice = [leaf(here, Node("selective", node.origin, node.key), f"{here}.mode")]
        return [
            *choice,
            leaf(here, Node("op", node.origin, node.key), f"{here}.selective_ac_option"),
            *found,
        ]
    return [
        leaf(
            here,
            Node("...", node.origin, node.key),
            f"{here}.mode",
            refused="the dump does not say whether this is full or none",
        )
    ]


def read_optimizer(node: Node) -> list[Found] | None:
    """Groups of parameters: one that takes all of them is what 0.2.2 has."""
    fields = node.value
    if not isinstance(fields, dict) or "param_groups" not in fields:
        return None
    found = [
        leaf(f"optimizer.{key}", child) for key, child in fields.items() if key != "param_groups"
    ]
    groups = fields["param_groups"]
    only = catch_all(groups)
    if only is None:
        why = "one optimizer with one set of values is migrated; these are groups of parameters with their own"
        return [
            *found,
            leaf("optimizer.param_groups", Node("...", groups.origin, groups.key), refused=why),
        ]
    here = "optimizer.param_groups[0]"
    if "optimizer_name" in only:
        found.append(leaf(f"{here}.optimizer_name", only["optimizer_name"], "optimizer.name"))
    arguments = only["optimizer_kwargs"].value
    assert isinstance(arguments, dict)
    for key, child in arguments.items():
        if key == "betas" and isinstance(child.value, list) and len(child.value) == 2:
            found += [
                leaf(f"{here}.betas", beta, f"optimizer.beta{number}")
                for number, beta in enumerate(child.value, 1)
            ]
        else:
            found.append(leaf(f"{here}.{key}", child, f"optimizer.{key}"))
    return found


def catch_all(groups: Node) -> dict[str, Node] | None:
    """The only group of parameters, if it takes all of them."""
    only = (
        groups.value[0].value if isinstance(groups.value, list) and len(groups.value) == 1 else None
    )
    if not isinstance(only, dict) or "pattern" not in only or plain(only["pattern"]) != ".*":
        return None
    return (
        only
        if "optimizer_kwargs" in only and isinstance(only["optimizer_kwargs"].value, dict)
        else None
    )


def read_converters(node: Node) -> list[Found] | None:
    """A list of converter configs, whose kinds are seen from their fields."""
    if not isinstance(node.value, list):
        return None
    here, names, found = "model_converters.converters", [], []
    for index, item in enumerate(node.value):
        fields = item.value if isinstance(item.value, dict) else {}
        kind = converter_kind(fields)
        if kind is None:
            why = "the dump does not say which converter this is"
            found.append(leaf(f"{here}[{index}]", Node("...", item.origin, item.key), refused=why))
            continue
        names.append(Node(kind, item.origin))
        found += [
            leaf(f"{here}[{index}].{key}", child, f"{kind}.{key}") for key, child in fields.items()
        ]
    return [leaf(here, Node(names, node.origin, node.key), "model.converters"), *found]


def converter_kind(fields: Mapping[str, Node]) -> str | None:
    """The registered name in 0.2.2 of the converter that has these fields."""
    if "rank" in fields and "alpha" in fields:
        return "lora"
    if "mxfp8_dim1_cast_kernel_choice" in fields:
        return "quantize.linear.mx"
    if "emulate" in fields:
        return "quantize.linear.float8"
    if set(fields) == {"recipe_name", "fqns"}:
        return "quantize.grouped_mm.mx"
    return None


READERS: dict[str, Callable[[Node], list[Found] | None]] = {
    "model_spec.model": read_model,
    "tokenizer": read_tokenizer,
    "loss": read_loss,
    "training": read_training,
    "activation_checkpoint": read_activation_checkpoint,
    "optimizer": read_optimizer,
    "model_converters.converters": read_converters,
}
