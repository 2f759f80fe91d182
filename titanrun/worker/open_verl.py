"""An engine by verl's names, from a recipe of ours or from the four configs that verl hands to its engines."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from titanrun.config.emit import emit
from titanrun.config.problems import fail
from titanrun.engines.verl.engine import VerlEngine
from titanrun.engines.verl.layout import Rule
from titanrun.recipe.of_huggingface import family_of
from titanrun.worker.open_engine import OpenEngine, open_engine

# what verl's torchtitan engine has where max_seq_len is not given
LONGEST_ROW = 2048
STEPS = 10000
DEGREES = {
    "data_parallel_replicate_size": "data_parallel_replicate_degree",
    "data_parallel_shard_size": "data_parallel_shard_degree",
    "tensor_parallel_size": "tensor_parallel_degree",
    "pipeline_parallel_size": "pipeline_parallel_degree",
    "context_parallel_size": "context_parallel_degree",
    "expert_parallel_size": "expert_parallel_degree",
    "expert_tensor_parallel_size": "expert_tensor_parallel_degree",
}
Config = Any


def open_verl_engine(
    recipe: str,
    overrides: Sequence[str] = (),
    *,
    rule: Rule = "difference",
    param_offload: bool = False,
    optimizer_offload: bool = False,
    forward_only: bool = False,
) -> VerlEngine:
    """The engine of a recipe; further arguments as of `VerlEngine`. It is built by `initialize`."""
    return VerlEngine(
        open=lambda: open_engine(recipe, overrides),
        rule=rule,
        param_offload=param_offload,
        optimizer_offload=optimizer_offload,
        forward_only=forward_only,
    )


def build_verl_engine(
    model_config: Config,
    engine_config: Config,
    optimizer_config: Config = None,
    checkpoint_config: Config = None,
    *,
    overrides: Sequence[str] = (),
    rule: Rule = "difference",
) -> VerlEngine:
    """The engine that verl's configs describe, objects or mappings with the fields of verl 0.9.1; what is absent has verl's default.

    Args:
        model_config: its `path` is the Hugging Face folder of sizes and weights.
        engine_config: of torchtitan's strategy.
        optimizer_config: None where there are no updates.
        checkpoint_config: not read: verl's torchtitan engine reads nothing of it.
        overrides: fields of the recipe that comes of it.
        rule: as of `VerlEngine`.

    Raises ProblemsFound where the folder holds no model that a family reads; the rest is found by `initialize`.
    """
    engine, optimizer = reader(engine_config), reader(optimizer_config)
    path = reader(model_config)("path", None)
    if path is None:
        raise fail(
            "usage", "the model's config names no path", help="set path to a Hugging Face folder"
        )
    data = recipe_of(Path(path), engine, optimizer)

    def opened() -> OpenEngine:
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "verl.yaml"
            file.write_text(emit(data), encoding="utf-8")
            return open_engine(str(file), overrides)

    return VerlEngine(
        open=opened,
        rule=rule,
        param_offload=engine("param_offload", False),
        optimizer_offload=engine("optimizer_offload", False),
        forward_only=engine("forward_only", False),
    )


Reader = Callable[[str, Any], Any]


def reader(config: Config) -> Reader:
    """Reads a field of a config, or its default where it is absent or the config is None."""
    if isinstance(config, Mapping):
        return config.get
    return lambda name, default: getattr(config, name, default)


def recipe_of(folder: Path, engine: Reader, optimizer: Reader) -> dict[str, Any]:
    """A recipe of kind pretrain; its data is never read."""
    assets = str(folder.resolve())
    return {
        "version": 1,
        "model": {
            "name": family_of(folder),
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
            "seq_len": engine("max_seq_len", None) or LONGEST_ROW,
            "steps": steps_of(optimizer),
            "max_norm": optimizer("clip_grad", 1.0),
            "enable_cpu_offload": engine("offload_policy", False) or engine("forward_only", False),
            "mixed_precision_param": engine("dtype", "bfloat16"),
        },
        "optimizer": optimizer_of(optimizer),
        "lr_scheduler": schedule_of(optimizer),
        "parallelism": {
            "fsdp_reshard_after_forward": engine("reshard_after_forward", "default"),
            **{ours: engine(theirs, 1) for theirs, ours in DEGREES.items()},
        },
        "activation_checkpoint": engine("activation_checkpoint", "selective"),
        "compile": {"enable": engine("use_torch_compile", True)},
        "checkpoint": {"initial_load_in_hf": True},
        "debug": {"seed": engine("seed", 42), "deterministic": engine("full_determinism", False)},
    }


def steps_of(optimizer: Reader) -> int:
    """The horizon of the schedule; verl says -1 until it knows."""
    steps = optimizer("total_training_steps", -1)
    return steps if steps > 0 else STEPS


def optimizer_of(optimizer: Reader) -> dict[str, Any]:
    """The optimizer section. Raises a problem for another optimizer than AdamW, as verl's torchtitan engine has by default."""
    name = optimizer("name", "AdamW")
    if name.lower() != "adamw":
        raise fail(
            "usage",
            f"the optimizer '{name}' is not taken here",
            help="override the section optimizer of the recipe",
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


def schedule_of(optimizer: Reader) -> dict[str, Any]:
    """Warmup over `lr_warmup_steps`, or a share of all steps where that is not above 0; from 0 where `zero_indexed_step` says so."""
    warmup = optimizer("lr_warmup_steps", -1)
    if warmup is None or warmup <= 0:
        warmup = int(optimizer("lr_warmup_steps_ratio", 0.0) * steps_of(optimizer))
    return {
        "warmup_steps": warmup,
        "total_steps": steps_of(optimizer),
        "decay_type": optimizer("decay_type", "linear"),
        "min_lr_factor": optimizer("min_lr_factor", 0.0),
        "first_step": 0 if optimizer("zero_indexed_step", False) else 1,
    }
