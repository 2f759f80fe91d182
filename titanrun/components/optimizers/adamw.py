"""AdamW: torch's kernels, without the second of start-up that torch's class costs."""

from collections.abc import Iterable
from inspect import unwrap

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from titanrun.components.optimizers.config import AdamWConfig


class EagerAdamW(AdamW):
    """torch.optim.AdamW whose methods are not wrapped for torch.compile.

    The wrappers of `add_param_group` and `step` import torch._dynamo, 1.2 s of CPU, in runs that compile nothing. What they
    wrap is used as it stands: the updates are torch's, bit for bit.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    step = torch.no_grad()(unwrap(AdamW.step))


def build_adamw(config: AdamWConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """AdamW in one group over all named parameters: weight decay applies to every one of them."""
    return EagerAdamW(
        list(parameters),
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=config.implementation == "fused",
        foreach=config.implementation == "foreach",
    )
