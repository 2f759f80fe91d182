"""Hints for keys of DeepSpeed, FSDP and others that choose how ranks share a model."""

import json
import re
from collections.abc import Mapping
from typing import Any

from titanrun.config.serialize import to_flow_yaml
from titanrun.recipe.migrate.axolotl import AXOLOTL
from titanrun.recipe.migrate.axolotl_values import convert_fsdp_config

STAGE = re.compile(r"(?:z|zero|stage)[-_]?([0-3])(?!\d)")
NUMBER = re.compile(r"[0-3]")
RANKS = "parallelism.data_parallel_shard_degree sets the number of ranks"
SHARDED = f"remove it: FSDP2, the default, shards weights, gradients and optimizer states; {RANKS}"
FULL = f"remove it: ZeRO stage 3 is what FSDP2, the default, does; {RANKS}"
GATHERED = (
    "write parallelism.fsdp_reshard_after_forward: never, with which FSDP2 keeps gathered weights "
    "until the backward pass"
)
REPLICATED = (
    "set parallelism.data_parallel_replicate_degree to the number of ranks: each holds the whole "
    "model"
)
HYBRID = (
    "set parallelism.data_parallel_replicate_degree to the number of nodes: FSDP2 shards over the "
    "ranks of each"
)
OFFLOAD = "write training.enable_cpu_offload: true"
NO_OFFLOAD = "remove it: nothing is offloaded to the CPU by default"
OF_STAGES = {0: REPLICATED, 1: GATHERED, 2: GATHERED, 3: FULL}
STRATEGIES: Mapping[str, str] = {
    **dict.fromkeys(("shard_grad_op", "2"), GATHERED),
    **dict.fromkeys(("no_shard", "ddp", "multi_gpu", "3"), REPLICATED),
    **dict.fromkeys(("hybrid_shard", "hybrid_shard_zero2", "4", "hsdp"), HYBRID),
}
"""Hints for values of FSDP's sharding_strategy, also by the number in PyTorch, and of others."""


def describe_zero(value: Any) -> str:
    """Return what stands for a configuration of DeepSpeed, its file, or a stage of ZeRO."""
    text = json.dumps(value, default=str).lower()
    if value is False or value in (None, "", "none"):
        return "remove it: ranks share the model as section parallelism says"
    stage = find_zero_stage(value, text)
    hint = OF_STAGES.get(stage, SHARDED) if stage is not None else SHARDED
    return f"{hint}; {OFFLOAD.removeprefix('write ')} offloads" if "offload" in text else hint


def find_zero_stage(value: Any, text: str) -> int | None:
    """Return the stage of ZeRO that a number, a mapping or the name of a file stands for."""
    if isinstance(value, dict):
        stages = [find_zero_stage(value.get(key), "") for key in ("stage", "zero_optimization")]
        return next((stage for stage in stages if stage is not None), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return int(value)
    found = STAGE.search(text)
    return None if found is None else int(found[1])


def describe_zero_switch(stage: int, value: Any) -> str:
    """Return what stands for a switch of a stage of ZeRO."""
    return describe_zero(stage if value is not False else False)


def describe_strategy(value: Any) -> str:
    """Return what stands for the strategy in which ranks share a model."""
    word = str(value).lower().replace("-", "_").rpartition(".")[2]
    return STRATEGIES.get(word) or (describe_zero(word) if STAGE.search(word) else SHARDED)


def describe_fsdp_config(value: Any) -> str:
    """Return the settings of a configuration of FSDP."""
    targets = convert_fsdp_config(AXOLOTL.keys["fsdp_config"], value, {}).targets
    settings = " and ".join(f"{path}: {to_flow_yaml(one)}" for path, one in targets.items())
    return f"write {settings}" if settings else SHARDED


def describe_offload(value: Any) -> str:
    """Return the setting that keeps weights on the CPU."""
    return OFFLOAD if value not in (False, None, "none", {}) else NO_OFFLOAD
