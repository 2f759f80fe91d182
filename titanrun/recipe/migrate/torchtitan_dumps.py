"""Conversion of torchtitan's config dumps after 0.2.2 to the keys of that release."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from titanrun.config.problems import DataPath, Origin
from titanrun.config.tree import Node, find_node, to_plain_data
from titanrun.recipe.migrate import torchtitan_streams as streams
from titanrun.recipe.migrate.key_mapping import (
    SourceKey,
    ignore_key,
    keep_key,
    move_key,
    reject_key,
)

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
GRAIN = "a setting of torchtitan's later data pipeline without a counterpart in titanrun"
ORDER = "the order of the data follows debug.seed"
TRACES = "a trace is written at the end of every cycle, and a snapshot too"

# keys that only later versions have
LATER: tuple[SourceKey, ...] = (
    move_key("dataloader.infinite", True, "training.dataset.repeat"),
    move_key("dataloader.repeat", True, "training.dataset.repeat"),
    move_key(
        "dataloader.shuffle", True, "training.dataset.shuffle", convert=streams.convert_stream_order
    ),
    ignore_key("dataloader.seed", 42, ORDER),
    move_key(
        "dataloader.streaming_shuffle_buffer_size",
        1000,
        "training.dataset.window",
        convert=streams.convert_shuffle_buffer,
    ),
    reject_key("dataloader.read_options", None, GRAIN),
    reject_key("dataloader.num_prefetch_batches", 2, GRAIN),
    reject_key("dataloader.collator", None, GRAIN),
    ignore_key(
        "validation.dataloader.infinite", False, "validation reads the same batches each time"
    ),
    ignore_key("training.disable_cuda_graphs", False, "titanrun captures no CUDA graphs"),
    reject_key(
        "parallelism.enable_fsdp_symm_mem",
        False,
        "titanrun gathers weights without symmetric memory",
    ),
    keep_key("parallelism.enable_sequence_parallel", True),
    ignore_key(
        "parallelism.spmd_backend",
        "spmd_types",
        "a choice between two implementations of torchtitan",
    ),
    reject_key(
        "parallelism.context_parallel_ptrr_mask_key", None, "the mask is chosen by the model family"
    ),
    keep_key("debug.detect_anomaly", False),
    ignore_key("debug.spmd_typechecking", False, "a check of torchtitan's own code"),
    ignore_key(
        "debug.enable_structured_logging",
        True,
        "metrics.jsonl and the logs of each rank are always written",
    ),
    reject_key("debug.batch_invariant", False, "torchtitan rejects it in pretraining too"),
    reject_key("profiling.profiler_repeat", None, TRACES),
    reject_key("profiling.profiler_skip_first", None, TRACES),
    reject_key("profiling.profiler_skip_first_wait", None, TRACES),
    reject_key("profiling.memory_snapshot_freq", None, TRACES),
    reject_key("profiling.memory_snapshot_max_entries", 1_000_000, TRACES),
    reject_key(
        "optimizer.optimizer_factory_kwargs_by_name", {}, "each optimizer has its own fields"
    ),
    reject_key(
        "override.imports",
        [],
        "recipes import nothing: an installed plug-in, listed in plugins, adds components",
    ),
    keep_key("loss.name", "cross_entropy"),
    keep_key("loss.num_chunks", 8),
    ignore_key("loss.global_vocab_size", None, "the model determines it"),
    move_key("lora.rank", 8, "converters[lora].rank"),
    move_key("lora.alpha", 16.0, "converters[lora].alpha"),
    move_key("lora.target_modules", None, "converters[lora].target_modules"),
    ignore_key("quantize.linear.float8.model_compile_enabled", False, "compile.enable sets it"),
    ignore_key("model_spec.model", None, "the flavor determines all sizes"),
    ignore_key("tokenizer", None, "titanrun uses the tokenizer in model.hf_assets_path"),
)


@dataclass(frozen=True, slots=True)
class DumpEntry:
    """One value of a dump, with its path in 0.2.2."""

    path: str
    written_path: str
    value: Any
    origin: Origin
    how: str = ""
    refused: str = ""
    original: Any = None


def convert_dump_to_release(root: Node) -> Iterator[DumpEntry]:
    """Yield every value of a dump in the layout of 0.2.2."""
    yield from iter_dump_entries(root, ())
    if find_node(root, ("job",)) is None and find_node(root, ("model_spec", "name")) is None:
        why = "this dump does not name the model: add model.name and model.flavor"
        yield DumpEntry("model.name", "model_spec", None, root.origin, refused=why)


def iter_dump_entries(node: Node, path: DataPath) -> Iterator[DumpEntry]:
    """Yield the values below a node; a section with a new shape has its own reader."""
    written = ".".join(map(str, path))
    reader = READERS.get(written)
    if reader is not None and (found := reader(node)) is not None:
        yield from found
    elif isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from iter_dump_entries(child, (*path, key))
    elif not isinstance(node.value, dict):
        yield build_dump_entry(written, node)


def build_dump_entry(written: str, node: Node, path: str | None = None, **words: Any) -> DumpEntry:
    """Return one value at `path`, or at the former path of its key."""
    return DumpEntry(
        path or get_release_path(written),
        written,
        to_plain_data(node),
        node.key or node.origin,
        **words,
    )


def get_release_path(written: str) -> str:
    """Return the path that 0.2.2 has for a key of a later version."""
    if written in MOVES:
        return MOVES[written]
    for new, old in MOVES.items():
        if new.endswith(".") and written.startswith(new):
            return old + written.removeprefix(new)
    return written


def read_model(node: Node) -> list[DumpEntry]:
    """Return the sizes as one entry, since the flavor determines them."""
    return [build_dump_entry("model_spec.model", Node("...", node.origin, node.key))]


def read_tokenizer(node: Node) -> list[DumpEntry]:
    """Return the tokenizer's config as one entry."""
    return [build_dump_entry("tokenizer", Node("...", node.origin, node.key))]


def read_loss(node: Node) -> list[DumpEntry] | None:
    """Return the loss, whose kind is derived from its fields: a dump does not name it."""
    if not isinstance(node.value, dict):
        return None
    if "mtp_scale" in node.value:
        return [
            build_dump_entry(
                "loss",
                Node("...", node.origin, node.key),
                refused="multi-token prediction is not migrated",
            )
        ]
    found = [
        build_dump_entry(f"loss.{key}", child)
        for key, child in node.value.items()
        if key != "loss_fn"
    ]
    if "num_chunks" in node.value:
        found.insert(
            0,
            build_dump_entry(
                "loss", Node("chunked_cross_entropy", node.origin, node.key), "loss.name"
            ),
        )
    return found


def read_training(node: Node) -> list[DumpEntry] | None:
    """Convert token budgets to sequences.

    Later versions count tokens; 0.2.2 counts sequences of seq_len.
    """
    values = to_plain_data(node)
    if (
        not isinstance(node.value, dict)
        or not isinstance(values, dict)
        or "num_tokens_per_microbatch_per_dp_rank" not in values
    ):
        return None
    found = [
        build_dump_entry(f"training.{key}", child)
        for key, child in node.value.items()
        if key not in TOKEN_COUNT_KEYS
    ]
    for key in TOKEN_COUNT_KEYS:
        if key in node.value:
            found.append(
                convert_tokens_to_sequences(key, node.value[key], values.get("max_context_length"))
            )
    return found


TOKEN_COUNT_KEYS = {
    "num_tokens_per_microbatch_per_dp_rank": "training.local_batch_size",
    "num_tokens_per_train_step": "training.global_batch_size",
}


def convert_tokens_to_sequences(key: str, node: Node, length: Any) -> DumpEntry:
    """Convert a number of tokens to a number of sequences."""
    tokens = node.value
    written = f"training.{key}"
    if tokens == -1:
        return build_dump_entry(written, node, TOKEN_COUNT_KEYS[key])
    if not isinstance(tokens, int) or not isinstance(length, int) or length < 1 or tokens % length:
        return build_dump_entry(
            written,
            node,
            TOKEN_COUNT_KEYS[key],
            refused=f"{tokens:,} tokens are not a whole number of sequences of {length:,} tokens",
        )
    counted = Node(tokens // length, node.origin, node.key)
    how = (
        f"{tokens:,} tokens are {tokens // length:,} sequences of {length:,} tokens, "
        "no longer packed across sequences"
    )
    return build_dump_entry(written, counted, TOKEN_COUNT_KEYS[key], how=how, original=tokens)


def read_activation_checkpoint(node: Node) -> list[DumpEntry] | None:
    """Return the tagged choice, of which a dump has the fields only."""
    here = "activation_checkpoint"
    if node.value is None:
        return [build_dump_entry(here, Node("none", node.origin, node.key), f"{here}.mode")]
    if not isinstance(node.value, dict) or "mode" in node.value:
        return None
    fields = node.value
    moved_fields = {
        "force_recompute_mm_shapes_by_fqns": "per_op_sac_force_recompute_mm_shapes_by_fqns"
    }
    found = [
        build_dump_entry(f"{here}.{key}", child, f"{here}.{moved_fields.get(key, key)}")
        for key, child in fields.items()
    ]
    if "memory_budget" in fields:
        return [
            build_dump_entry(here, Node("memory_budget", node.origin, node.key), f"{here}.mode"),
            *found,
        ]
    if "force_recompute_mm_shapes_by_fqns" in fields:
        choice = [build_dump_entry(here, Node("selective", node.origin, node.key), f"{here}.mode")]
        return [
            *choice,
            build_dump_entry(
                here, Node("op", node.origin, node.key), f"{here}.selective_ac_option"
            ),
            *found,
        ]
    return [
        build_dump_entry(
            here,
            Node("...", node.origin, node.key),
            f"{here}.mode",
            refused="the dump does not state whether this is full or none",
        )
    ]


def read_optimizer(node: Node) -> list[DumpEntry] | None:
    """Read parameter groups: a single group of all parameters is what 0.2.2 has."""
    fields = node.value
    if not isinstance(fields, dict) or "param_groups" not in fields:
        return None
    found = [
        build_dump_entry(f"optimizer.{key}", child)
        for key, child in fields.items()
        if key != "param_groups"
    ]
    groups = fields["param_groups"]
    only = find_catch_all_group(groups)
    if only is None:
        why = (
            "only one optimizer with one set of values is migrated, but these parameter groups "
            "have their own values"
        )
        return [
            *found,
            build_dump_entry(
                "optimizer.param_groups", Node("...", groups.origin, groups.key), refused=why
            ),
        ]
    here = "optimizer.param_groups[0]"
    if "optimizer_name" in only:
        found.append(
            build_dump_entry(f"{here}.optimizer_name", only["optimizer_name"], "optimizer.name")
        )
    arguments = only["optimizer_kwargs"].value
    assert isinstance(arguments, dict)
    for key, child in arguments.items():
        if key == "betas" and isinstance(child.value, list) and len(child.value) == 2:
            found += [
                build_dump_entry(f"{here}.betas", beta, f"optimizer.beta{number}")
                for number, beta in enumerate(child.value, 1)
            ]
        else:
            found.append(build_dump_entry(f"{here}.{key}", child, f"optimizer.{key}"))
    return found


def find_catch_all_group(groups: Node) -> dict[str, Node] | None:
    """Return the only parameter group if it matches all parameters."""
    only = (
        groups.value[0].value if isinstance(groups.value, list) and len(groups.value) == 1 else None
    )
    if (
        not isinstance(only, dict)
        or "pattern" not in only
        or to_plain_data(only["pattern"]) != ".*"
    ):
        return None
    return (
        only
        if "optimizer_kwargs" in only and isinstance(only["optimizer_kwargs"].value, dict)
        else None
    )


def read_converters(node: Node) -> list[DumpEntry] | None:
    """Return a list of converter configs, whose kinds are derived from their fields."""
    if not isinstance(node.value, list):
        return None
    here, names, found = "model_converters.converters", [], []
    for index, item in enumerate(node.value):
        fields = item.value if isinstance(item.value, dict) else {}
        kind = find_converter_kind(fields)
        if kind is None:
            why = "the dump does not name this converter"
            found.append(
                build_dump_entry(
                    f"{here}[{index}]", Node("...", item.origin, item.key), refused=why
                )
            )
            continue
        names.append(Node(kind, item.origin))
        found += [
            build_dump_entry(f"{here}[{index}].{key}", child, f"{kind}.{key}")
            for key, child in fields.items()
        ]
    return [build_dump_entry(here, Node(names, node.origin, node.key), "model.converters"), *found]


def find_converter_kind(fields: Mapping[str, Node]) -> str | None:
    """Return the registered name in 0.2.2 of the converter that has these fields."""
    if "rank" in fields and "alpha" in fields:
        return "lora"
    if "mxfp8_dim1_cast_kernel_choice" in fields:
        return "quantize.linear.mx"
    if "emulate" in fields:
        return "quantize.linear.float8"
    if set(fields) == {"recipe_name", "fqns"}:
        return "quantize.grouped_mm.mx"
    return None


READERS: dict[str, Callable[[Node], list[DumpEntry] | None]] = {
    "model_spec.model": read_model,
    "tokenizer": read_tokenizer,
    "loss": read_loss,
    "training": read_training,
    "activation_checkpoint": read_activation_checkpoint,
    "optimizer": read_optimizer,
    "model_converters.converters": read_converters,
}
