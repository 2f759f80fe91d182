"""Lion (https://arxiv.org/abs/2302.06675)."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from pebble.configs import LionConfig


class Lion(Optimizer):
    """The state is named in checkpoints as it is here: `exp_avg`."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, lr: float, beta1: float, beta2: float
    ) -> None:
        super().__init__(list(parameters), {"lr": lr, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Moves every weight by the learning rate, up or down."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("exp_avg", torch.zeros_like(weight))
                direction = mean.lerp(weight.grad, 1 - group["beta1"]).sign()
                weight.add_(direction, alpha=-group["lr"])
                mean.lerp_(weight.grad, 1 - group["beta2"])


def build_lion(config: LionConfig, *, parameters: Sequence[tuple[str, nn.Parameter]]) -> Lion:
    """Build Lion for all trained parameters."""
    return Lion(
        [weight for _, weight in parameters], lr=config.lr, beta1=config.beta1, beta2=config.beta2
    )
