"""Parameters in torch's groups, each with its own learning rate and decay."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from titanrun.components.optimizers.claims import matches
from titanrun.components.optimizers.config import GroupedConfig

Named = tuple[str, nn.Parameter]
Group = dict[str, Any]
KINDS: dict[str, Callable[[str, nn.Parameter], bool]] = {
    "norms": lambda name, parameter: (
        parameter.ndim == 1 and "norm" in name and name.endswith(".weight")
    ),
    "biases": lambda name, parameter: name.endswith("bias"),
    "embeddings": lambda name, parameter: name.startswith("tok_embeddings."),
}


def grouped(config: GroupedConfig, parameters: Iterable[Named]) -> list[Group]:
    """Parameter groups for a torch optimizer: what no group of the recipe claims, then the recipe's in their order.

    Each is cut into what decays and what does not, and none is empty; a pipeline stage lacks those whose layers it lacks.
    """
    left = list(parameters)
    claimed = [
        [named for named in left if matches(named[0], wanted.match)]
        for wanted in config.param_groups
    ]
    names = {name for group in claimed for name, _ in group}
    groups = by_decay(config, [named for named in left if named[0] not in names], {})
    for wanted, found in zip(config.param_groups, claimed, strict=True):
        own = {"lr": wanted.lr, "weight_decay": wanted.weight_decay}
        groups += by_decay(
            config, found, {name: value for name, value in own.items() if value is not None}
        )
    return groups


def by_decay(config: GroupedConfig, parameters: list[Named], own: Group) -> list[Group]:
    """One group of what decays, and one of what does not; a decay that a group names is for all of it."""
    base = {"lr": config.lr, "weight_decay": config.weight_decay, **own}
    kinds = [] if "weight_decay" in own else [KINDS[kind] for kind in config.no_decay]
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
