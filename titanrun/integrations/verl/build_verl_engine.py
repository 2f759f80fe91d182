"""Builders of verl engines, from a titanrun recipe or from verl's four configs."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_yaml
from titanrun.integrations.verl.verl_batches import DocumentRule
from titanrun.integrations.verl.verl_engine import VerlEngine
from titanrun.recipe.resolving.recipe_from_hf import get_model_family
from titanrun.recipe.resolving.resolve_loaded import RecipeSource
from titanrun.worker.open_engine import EngineHandle, open_engine

# default of verl's torchtitan engine for max_seq_len
DEFAULT_MAX_SEQ_LEN = 2048
DEFAULT_TOTAL_STEPS = 10000
DEGREE_FIELDS = {
    "data_parallel_replicate_size": "data_parallel_replicate_degree",
    "data_parallel_shard_size": "data_parallel_shard_degree",
    "tensor_parallel_size": "tensor_parallel_degree",
    "pipeline_parallel_size": "pipeline_parallel_degree",
    "context_parallel_size": "context_parallel_degree",
    "expert_parallel_size": "expert_parallel_degree",
    "expert_tensor_parallel_size": "expert_tensor_parallel_degree",
}
VerlConfig = Any


def open_verl_engine(
    recipe: RecipeSource,
    overrides: Sequence[str] = (),
    *,
    document_rule: DocumentRule = "difference",
    param_offload: bool = False,
    optimizer_offload: bool = False,
    forward_only: bool = False,
) -> VerlEngine:
    """Return the engine of a recipe, to be built by `initialize`.

    For the other arguments see `VerlEngine`.
    """
    return VerlEngine(
        build_handle=lambda: open_engine(recipe, overrides),
        document_rule=document_rule,
        param_offload=param_offload,
        optimizer_offload=optimizer_offload,
        forward_only=forward_only,
    )


def build_verl_engine(
    model_config: VerlConfig,
    engine_config: VerlConfig,
    optimizer_config: VerlConfig = None,
    checkpoint_config: VerlConfig = None,
    *,
    overrides: Sequence[str] = (),
    document_rule: DocumentRule = "difference",
) -> VerlEngine:
    """Return the engine that verl's configs describe, to be built by `initialize`.

    Configs are objects or mappings with the fields of verl 0.9.1. Absent fields have verl's
    defaults.

    Args:
        model_config: its `path` is the Hugging Face folder of sizes and weights.
        engine_config: config of torchtitan's strategy.
        optimizer_config: None if there are no updates.
        checkpoint_config: not used, as in verl's torchtitan engine.
        overrides: overrides of the resulting recipe.
        document_rule: see `VerlEngine`.

    Raises:
        ProblemsFound: no model family can read the folder. Other problems are found by
            `initialize`.
    """
    engine, optimizer = build_field_reader(engine_config), build_field_reader(optimizer_config)
    path = build_field_reader(model_config)("path", None)
    if path is None:
        raise problem_error(
            "usage", "the model config has no path", hint="set path to a Hugging Face folder"
        )
    data = build_verl_recipe(Path(path), engine, optimizer)

    def build_handle() -> EngineHandle:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "verl.yaml"
            file.write_text(to_yaml(data), encoding="utf-8")
            return open_engine(str(file), overrides)

    return VerlEngine(
        build_handle=build_handle,
        document_rule=document_rule,
        param_offload=engine("param_offload", False),
        optimizer_offload=engine("optimizer_offload", False),
        forward_only=engine("forward_only", False),
    )


ReadFieldFn = Callable[[str, Any], Any]


def build_field_reader(config: VerlConfig) -> ReadFieldFn:
    """Return a function that reads a field of a config, or a default if it is absent.

    The config may be None.
    """
    if isinstance(config, Mapping):
        return config.get
    return lambda name, default: getattr(config, name, default)


def build_verl_recipe(folder: Path, engine: ReadFieldFn, optimizer: ReadFieldFn) -> dict[str, Any]:
    """Build a recipe of kind pretrain whose data is never read."""
    assets = str(folder.resolve())
    return {
        "version": 1,
        "model": {
            "name": get_model_family(folder),
            "flavor": "auto",
            "hf_assets_path": assets,
            "attention": {
                "mask": "block_causal",
                "documents": "positions",
                "backend": engine("attn_type", "flex"),
            },
        },
        "tokenizer": {"name": "huggingface", "path": assets},
        "training": {
            "dataset": {"name": "text", "path": assets, "packing": "documents"},
            "seq_len": engine("max_seq_len", None) or DEFAULT_MAX_SEQ_LEN,
            "steps": get_total_training_steps(optimizer),
            "max_norm": optimizer("clip_grad", 1.0),
            "enable_cpu_offload": engine("offload_policy", False) or engine("forward_only", False),
            "mixed_precision_param": engine("dtype", "bfloat16"),
        },
        "optimizer": build_optimizer_section(optimizer),
        "lr_scheduler": build_lr_scheduler_section(optimizer),
        "parallelism": {
            "fsdp_reshard_after_forward": engine("reshard_after_forward", "default"),
            **{ours: engine(theirs, 1) for theirs, ours in DEGREE_FIELDS.items()},
        },
        "activation_checkpoint": engine("activation_checkpoint", "selective"),
        "compile": {"enable": engine("use_torch_compile", True)},
        "checkpoint": {"initial_load_in_hf": True},
        "debug": {"seed": engine("seed", 42), "deterministic": engine("full_determinism", False)},
    }


def get_total_training_steps(optimizer: ReadFieldFn) -> int:
    """Return the horizon of the schedule. verl passes -1 until it knows."""
    steps = optimizer("total_training_steps", -1)
    return steps if steps > 0 else DEFAULT_TOTAL_STEPS


def build_optimizer_section(optimizer: ReadFieldFn) -> dict[str, Any]:
    """Build the optimizer section for AdamW, the default of verl's torchtitan engine.

    Raises:
        ProblemsFound: another optimizer is configured.
    """
    name = optimizer("name", "AdamW")
    if name.lower() != "adamw":
        raise problem_error(
            "usage",
            f"optimizer '{name}' is not supported here",
            hint="override the recipe section `optimizer`",
        )
    beta1, beta2 = optimizer("betas", (0.9, 0.999))
    return {
        "name": "adamw",
        "lr": optimizer("lr", 1e-3),
        "beta1": beta1,
        "beta2": beta2,
        "eps": optimizer("eps", 1e-8),
        "weight_decay": optimizer("weight_decay", 0.01),
    }


def build_lr_scheduler_section(optimizer: ReadFieldFn) -> dict[str, Any]:
    """Build the lr_scheduler section.

    Warmup takes `lr_warmup_steps`, or a fraction of all steps if that is not above 0. It starts at
    0 if `zero_indexed_step` is set.
    """
    warmup = optimizer("lr_warmup_steps", -1)
    if warmup is None or warmup <= 0:
        warmup = int(optimizer("lr_warmup_steps_ratio", 0.0) * get_total_training_steps(optimizer))
    return {
        "warmup_steps": warmup,
        "total_steps": get_total_training_steps(optimizer),
        "decay_type": optimizer("decay_type", "linear"),
        "min_lr_factor": optimizer("min_lr_factor", 0.0),
        "first_step": 0 if optimizer("zero_indexed_step", False) else 1,
    }
