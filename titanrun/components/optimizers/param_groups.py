"""Parameters in torch's groups, each with its learning rate and decay."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from titanrun.components.checkpoints.adapter_weights import (
    EXPERT_LORA_SUFFIXES,
    LORA_B_SUFFIX,
    MAGNITUDE_SUFFIX,
)
from titanrun.components.optimizers.config import StandardOptimizerConfig
from titanrun.components.optimizers.param_group_config import matches_any_pattern

FASTER_SUFFIXES = (LORA_B_SUFFIX, EXPERT_LORA_SUFFIXES[1], MAGNITUDE_SUFFIX)
NamedParameter = tuple[str, nn.Parameter]
ParamGroupDict = dict[str, Any]
NO_DECAY_KINDS: dict[str, Callable[[str, nn.Parameter], bool]] = {
    "norms": lambda name, parameter: (
        parameter.ndim == 1 and "norm" in name and name.endswith(".weight")
    ),
    "biases": lambda name, parameter: name.endswith("bias"),
    "embeddings": lambda name, parameter: name.startswith("tok_embeddings."),
}


def build_param_groups(
    config: StandardOptimizerConfig, parameters: Iterable[NamedParameter]
) -> list[ParamGroupDict]:
    """Build the parameter groups of a torch optimizer.

    First come the parameters that no group of the recipe matches, then the recipe's groups in
    order. Each is split by weight decay, and for LoRA+ by learning rate, and none is empty; a
    pipeline stage lacks the groups whose layers it lacks.
    """
    left = list(parameters)
    claimed = [
        [named for named in left if matches_any_pattern(named[0], wanted.match)]
        for wanted in config.param_groups
    ]
    names = {name for group in claimed for name, _ in group}
    groups = split_by_weight_decay(config, [named for named in left if named[0] not in names], {})
    for wanted, found in zip(config.param_groups, claimed, strict=True):
        own = {"lr": wanted.lr, "weight_decay": wanted.weight_decay}
        groups += split_by_weight_decay(
            config, found, {name: value for name, value in own.items() if value is not None}
        )
    if config.lora_plus_ratio == 1:
        return groups
    return [
        part for group in groups for part in split_by_adapter_part(group, config.lora_plus_ratio)
    ]


def split_by_adapter_part(group: ParamGroupDict, ratio: float) -> list[ParamGroupDict]:
    """Split a group into adapters' B and magnitudes, with a higher learning rate, and others.

    See https://arxiv.org/abs/2402.12354.
    """
    faster = [named for named in group["params"] if named[0].endswith(FASTER_SUFFIXES)]
    names = {name for name, _ in faster}
    others = [named for named in group["params"] if named[0] not in names]
    parts = {**group, "params": others}, {**group, "params": faster, "lr": ratio * group["lr"]}
    return [part for part in parts if part["params"]]


def split_by_weight_decay(
    config: StandardOptimizerConfig, parameters: list[NamedParameter], overrides: ParamGroupDict
) -> list[ParamGroupDict]:
    """Split into a group with and one without weight decay.

    A decay set by the group applies to all of it.
    """
    base = {"lr": config.lr, "weight_decay": config.weight_decay, **overrides}
    kinds = (
        [] if "weight_decay" in overrides else [NO_DECAY_KINDS[kind] for kind in config.no_decay]
    )
    spared = {
        name for name, parameter in parameters if any(kind(name, parameter) for kind in kinds)
    }
    decaying = {**base, "params": [named for named in parameters if named[0] not in spared]}
    kept = {
        **base,
        "params": [named for named in parameters if named[0] in spared],
        "weight_decay": 0.0,
    }
    return [group for group in (decaying, kept) if group["params"]]
