"""Builders of verl engines, from a titanrun recipe or from verl's four configs."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from titanrun.config.problems import problem_error
from titanrun.config.serialize import to_yaml
from titanrun.distributed.rank_env import get_environment_variables
from titanrun.integrations.verl.rank_position import (
    RankPosition,
    compute_rank_position,
    count_ranks,
)
from titanrun.integrations.verl.verl_batches import DocumentRule, EntropyOptions
from titanrun.integrations.verl.verl_checkpoints import build_checkpoint_contents
from titanrun.integrations.verl.verl_config_fields import (
    CHECKPOINT_FIELDS,
    ENGINE_FIELDS,
    OPTIMIZER_FIELDS,
    ReadFieldFn,
    VerlConfig,
    build_field_reader,
    check_config_fields,
    check_model_config,
)
from titanrun.integrations.verl.verl_engine import VerlEngine
from titanrun.recipe.resolving.recipe_from_hf import get_model_family, read_context
from titanrun.recipe.resolving.resolve import Resolved
from titanrun.recipe.resolving.resolve_loaded import RecipeSource, resolve_source
from titanrun.worker.open_engine import open_engine

# default of verl's ppo_max_token_len_per_gpu, which no sequence exceeds
DEFAULT_MAX_SEQ_LEN = 16384
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

    def find_position() -> RankPosition:
        resolved = resolve_source(
            recipe, overrides, environment=get_environment_variables(), ranks=count_ranks()
        )
        return compute_rank_position(resolved.run)

    return VerlEngine(
        build_handle=lambda: open_engine(recipe, overrides),
        find_position=find_position,
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
    defaults. The optimizer config is read by `initialize`, since verl fills it in until then.

    Args:
        model_config: its `path` is the Hugging Face folder of sizes and weights.
        engine_config: config of torchtitan's strategy.
        optimizer_config: None if there are no updates.
        checkpoint_config: what checkpoints hold. None: everything.
        overrides: overrides of the resulting recipe, after those of the engine config.
        document_rule: see `VerlEngine`.

    Raises:
        ProblemsFound: a field is not supported, or no model family can read the folder. Other
            problems are found by `initialize`.
    """
    check_config_fields(engine_config, ENGINE_FIELDS)
    check_config_fields(optimizer_config, OPTIMIZER_FIELDS)
    check_config_fields(checkpoint_config, CHECKPOINT_FIELDS)
    engine = build_field_reader(engine_config)
    resolve = partial(
        resolve_verl_recipe,
        get_model_folder(model_config),
        engine,
        build_field_reader(optimizer_config),
        [*engine("overrides", ()), *overrides],
    )
    return VerlEngine(
        build_handle=lambda: open_engine(resolve()),
        find_position=lambda: compute_rank_position(resolve().run),
        document_rule=document_rule,
        param_offload=engine("param_offload", False),
        optimizer_offload=engine("optimizer_offload", False),
        forward_only=engine("forward_only", False),
        entropy=build_entropy_options(engine),
        contents=build_checkpoint_contents(
            build_field_reader(checkpoint_config)("save_contents", None),
            build_field_reader(checkpoint_config)("load_contents", None),
        ),
    )


def get_model_folder(model_config: VerlConfig) -> Path:
    """Return the folder of a model config: verl's local copy of its path, else the path.

    Raises:
        ProblemsFound: it has none, no model family can read it, or the config asks for more.
    """
    check_model_config(model_config)
    read_field = build_field_reader(model_config)
    path = read_field("local_path", None) or read_field("path", None)
    if path is None:
        raise problem_error(
            "usage", "the model config has no path", hint="set path to a Hugging Face folder"
        )
    if not Path(path).is_dir():
        raise problem_error(
            "usage",
            f"path of verl's model config is no folder: '{path}'",
            hint="download the model, and set path to its folder",
        )
    get_model_family(Path(path))
    return Path(path)


def resolve_verl_recipe(
    folder: Path, engine: ReadFieldFn, optimizer: ReadFieldFn, overrides: Sequence[str]
) -> Resolved:
    """Resolve the recipe that verl's configs describe as they are now.

    Raises:
        ProblemsFound: the recipe has problems.
    """
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "verl.yaml"
        file.write_text(to_yaml(build_verl_recipe(folder, engine, optimizer)), encoding="utf-8")
        return resolve_source(
            str(file), overrides, environment=get_environment_variables(), ranks=count_ranks()
        )


def build_entropy_options(engine: ReadFieldFn) -> EntropyOptions:
    """Return how verl's engine config asks for the entropy to be computed."""
    is_chunked = engine("entropy_from_logits_with_chunking", False)
    return EntropyOptions(
        chunk_tokens=engine("entropy_from_logits_chunk_size", 2048) if is_chunked else None,
        should_recompute=engine("entropy_checkpointing", False),
    )


def build_verl_recipe(folder: Path, engine: ReadFieldFn, optimizer: ReadFieldFn) -> dict[str, Any]:
    """Build a recipe of kind pretrain whose data is never read.

    What it does not say is taken from the engine config's `recipe`.
    """
    assets, recipe = str(folder.resolve()), engine("recipe", None)
    return {
        "version": 1,
        **({} if recipe is None else {"extends": [str(Path(recipe).resolve())]}),
        "model": {
            "name": get_model_family(folder),
            "flavor": "auto",
            "hf_assets_path": assets,
            "attention": {
                "mask": "block_causal",
                "documents": "positions",
                "backend": get_attention_backend(engine),
            },
        },
        "tokenizer": {"name": "huggingface", "path": assets},
        "training": {
            "dataset": {"name": "text", "path": assets, "packing": "documents"},
            "seq_len": engine("max_seq_len", None) or get_default_seq_len(folder),
            "steps": get_total_training_steps(optimizer),
            "max_norm": get_clip_grad(optimizer),
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


def get_default_seq_len(folder: Path) -> int:
    """Return the longest sequence that the model of a folder takes, up to DEFAULT_MAX_SEQ_LEN."""
    return min(DEFAULT_MAX_SEQ_LEN, read_context(folder) or DEFAULT_MAX_SEQ_LEN)


def get_attention_backend(engine: ReadFieldFn) -> str:
    """Return the attention back end.

    Raises:
        ProblemsFound: it is flex_flash.
    """
    backend = str(engine("attn_type", "flex"))
    if backend == "flex_flash":
        raise problem_error(
            "usage",
            "flex_flash needs FlexAttention with FlashAttention kernels, which are not used here",
            hint="set attn_type to flex",
        )
    return backend


def get_clip_grad(optimizer: ReadFieldFn) -> float:
    """Return the largest gradient norm: grad_clip, its former name, wins as in verl."""
    former = optimizer("grad_clip", None)
    return float(optimizer("clip_grad", 1.0) if former is None else former)


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
