"""Stochastic gradient descent with torch's kernels."""

from collections.abc import Iterable
from inspect import unwrap

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from titanrun.components.optimizers.config import SgdConfig
from titanrun.components.optimizers.param_groups import build_param_groups


class EagerSgd(SGD):
    """torch.optim.SGD whose methods are not wrapped for torch.compile; see EagerAdam."""

    add_param_group = unwrap(Optimizer.add_param_group)
    step = torch.no_grad()(unwrap(SGD.step))


def build_sgd(config: SgdConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Build SGD over all named parameters."""
    return EagerSgd(
        build_param_groups(config, parameters),
        lr=config.lr,
        momentum=config.momentum,
        dampening=config.dampening,
        nesterov=config.nesterov,
        weight_decay=config.weight_decay,
        foreach=False,
    )
