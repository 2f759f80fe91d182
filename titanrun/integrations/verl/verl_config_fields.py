"""Fields of verl's configs: which are read, which have no effect here, and which are refused.

The tables cover verl 0.9.1. A field that is in no table is refused, so that a new one is never
ignored silently.
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from titanrun.config.problems import problem_error

log = logging.getLogger(__name__)
VerlConfig = Any


@dataclass(frozen=True, slots=True)
class FieldTable:
    """Fields of one of verl's configs.

    Args:
        title: what messages call the config.
        used: fields that the engine reads.
        passed_on: fields that verl's workers copy into each batch or read themselves.
        ignored: fields without effect here, with the reason.
        refused: fields that must keep their values, with what to use instead.
        defaults: values of `ignored` and `refused` that mean the same as none.
        config_class: verl's class with these fields.
    """

    title: str
    config_class: str
    used: frozenset[str]
    passed_on: frozenset[str] = frozenset()
    ignored: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


ENGINE_FIELDS = FieldTable(
    title="engine config",
    config_class="TorchtitanEngineConfig",
    used=frozenset(
        {
            "param_offload",
            "optimizer_offload",
            "offload_policy",
            "forward_only",
            "dtype",
            "seed",
            "full_determinism",
            "reshard_after_forward",
            "use_torch_compile",
            "entropy_from_logits_with_chunking",
            "entropy_from_logits_chunk_size",
            "entropy_checkpointing",
            "data_parallel_replicate_size",
            "data_parallel_shard_size",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "context_parallel_size",
            "expert_parallel_size",
            "expert_tensor_parallel_size",
            "attn_type",
            "activation_checkpoint",
            "max_seq_len",
            "recipe",
            "overrides",
        }
    ),
    passed_on=frozenset(
        {
            "strategy",
            "use_dynamic_bsz",
            "max_token_len_per_gpu",
            "micro_batch_size_per_gpu",
            "infer_max_token_len_per_gpu",
            "infer_micro_batch_size_per_gpu",
            "use_remove_padding",
        }
    ),
    ignored={
        "wrap_policy": "each layer is an FSDP unit",
        "use_orig_params": "FSDP2 always keeps the original parameters",
        "forward_prefetch": "FSDP2 prefetches the next layer by itself",
        "data_parallel_size": "data_parallel_shard_size and data_parallel_replicate_size are read",
        "spmd_backend": "it chooses between implementations of torchtitan",
        "use_fused_kernels": "there is no fused kernel of the output layer and the loss",
    },
    refused={
        "mixed_precision": "use dtype",
        "router_replay": "routing of experts is not replayed",
    },
    defaults={
        "wrap_policy": ({}, {"min_num_params": 0}),
        "use_orig_params": (False,),
        "forward_prefetch": (False,),
        "data_parallel_size": (1,),
        "spmd_backend": ("spmd_types",),
        "use_fused_kernels": (False,),
        "mixed_precision": (False,),
    },
)
OPTIMIZER_FIELDS = FieldTable(
    title="optimizer config",
    config_class="TorchtitanOptimizerConfig",
    used=frozenset(
        {
            "name",
            "lr",
            "lr_warmup_steps",
            "lr_warmup_steps_ratio",
            "total_training_steps",
            "weight_decay",
            "betas",
            "eps",
            "clip_grad",
            "grad_clip",
            "decay_type",
            "min_lr_factor",
            "zero_indexed_step",
        }
    ),
)
CHECKPOINT_FIELDS = FieldTable(
    title="checkpoint config",
    config_class="CheckpointConfig",
    used=frozenset({"save_contents", "load_contents"}),
    ignored={"strict": "weights must always fit the model"},
    refused={
        "async_save": "checkpoints are written before save_checkpoint returns",
        "save_lora_only": "a checkpoint holds all weights",
        "mbridge_config": "it is for Megatron",
    },
    defaults={
        "strict": (True,),
        "async_save": (False,),
        "save_lora_only": (False,),
        "mbridge_config": ({},),
    },
)
# what a model config may not ask for, where it says so, and what to use instead
REFUSED_MODEL_FIELDS = {
    ("lora_rank",): "override converters with lora",
    ("lora", "rank"): "override converters with lora",
    ("lora_adapter_path",): "merge the adapter into the weights first",
    ("target_parameters",): "override converters with lora",
    ("enable_activation_offload",): "use activation_checkpoint",
    ("use_liger",): "use use_torch_compile",
    ("tiled_mlp", "enabled"): "leave it off",
    ("mtp", "enable"): "leave it off",
}
# the other entry of override_config is how transformers computes attention
READ_MODEL_OVERRIDE = "attn_implementation"


def check_config_fields(config: VerlConfig, table: FieldTable) -> None:
    """Refuse fields that cannot be honoured, and warn about those without effect.

    Each warning is logged once per process.

    Raises:
        ProblemsFound: a field is unknown, or refused and not at its default.
    """
    for name, value in iter_config_fields(config):
        if name.startswith("_") or name in table.used or name in table.passed_on:
            continue
        is_known = name in table.ignored or name in table.refused
        if is_known and is_default(value, table.defaults.get(name, ())):
            continue
        if name in table.ignored:
            warn_once(f"verl's {table.title}: {name} has no effect: {table.ignored[name]}")
            continue
        raise problem_error(
            "usage",
            f"{name} of verl's {table.title} is not supported",
            hint=table.refused.get(name, f"use {table.config_class}"),
        )


def check_model_config(config: VerlConfig) -> None:
    """Refuse what verl's model config asks for beside its folder and tokenizer.

    Raises:
        ProblemsFound: a field that changes the model is set.
    """
    for path, hint in REFUSED_MODEL_FIELDS.items():
        value = config
        for name in path:
            value = build_field_reader(value)(name, None)
        if value:
            message = f"{'.'.join(path)} of verl's model config is not supported"
            raise problem_error("usage", message, hint=hint)
    for name in build_field_reader(config)("override_config", None) or ():
        if name != READ_MODEL_OVERRIDE:
            raise problem_error(
                "usage",
                f"override_config.{name} of verl's model config is not supported",
                hint="change config.json in the folder of the model",
            )


def iter_config_fields(config: VerlConfig) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a config: a dataclass, a mapping, another object or None."""
    if dataclasses.is_dataclass(config):
        yield from ((each.name, getattr(config, each.name)) for each in dataclasses.fields(config))
    elif isinstance(config, Mapping):
        yield from ((str(name), value) for name, value in config.items())
    elif config is not None:
        yield from vars(config).items()


def is_default(value: Any, defaults: tuple[Any, ...]) -> bool:
    """Return whether a value says nothing: None, a default, or a switch that is off."""
    return (
        value is None
        or to_plain(value) in defaults
        or build_field_reader(value)("mode", None) == "disabled"
    )


def to_plain(value: Any) -> Any:
    """Return a mapping as a dict, to be compared."""
    return dict(value) if isinstance(value, Mapping) else value


_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Log a warning unless this process has logged it before."""
    if message not in _warned:
        _warned.add(message)
        log.warning("%s", message)


ReadFieldFn = Callable[[str, Any], Any]


def build_field_reader(config: VerlConfig) -> ReadFieldFn:
    """Return a function that reads a field of a config, or a default if it is absent.

    The config may be None.
    """
    if isinstance(config, Mapping):
        return config.get
    return lambda name, default: getattr(config, name, default)
