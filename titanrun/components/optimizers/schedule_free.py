"""Schedule-free AdamW (https://arxiv.org/abs/2405.15682).

Iterates are z, their weighted average is x, and gradients are computed at y between the two.
"""

from collections.abc import Iterable, Mapping
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.components.optimizers.config import ScheduleFreeAdamWConfig
from titanrun.components.optimizers.param_groups import build_param_groups


class ScheduleFreeAdamW(Optimizer):
    """Optimizer whose parameters are y during training.

    `averages` are the weights to evaluate, save and export. x is stored in addition to z, so that y
    = lerp(z, x, beta1) has the same bits whenever it is computed: an evaluation in between changes
    nothing.
    """

    add_param_group = unwrap(Optimizer.add_param_group)

    def __init__(self, groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self._averages: dict[Tensor, Tensor] = {}

    @property
    def averages(self) -> Mapping[Tensor, Tensor]:
        """Average x of every parameter that has been updated, without copies."""
        return self._averages

    @torch.no_grad()
    def swap_in_averages(self) -> None:
        """Copy the averages into the parameters, for evaluation."""
        for parameter, average in self._averages.items():
            parameter.copy_(average)

    @torch.no_grad()
    def swap_out_averages(self) -> None:
        """Restore the training weights, also after averages or state were loaded."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self._averages:
                    parameter.copy_(
                        torch.lerp(
                            self.state[parameter]["z"], self._averages[parameter], group["betas"][0]
                        )
                    )

    def build_initial_state(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the state of a parameter before its first update."""
        self._averages[parameter] = parameter.detach().clone()
        return {
            "step": torch.zeros((), dtype=torch.float64),
            "weight_sum": torch.zeros((), dtype=torch.float64),
            "lr_max": torch.zeros((), dtype=torch.float64),
            "z": parameter.detach().clone(),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient."""
        assert closure is None, "gradients are there before a step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: nn.Parameter, gradient: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if not self.state[parameter]:
            self.state[parameter] = self.build_initial_state(parameter)
        state, average = self.state[parameter], self._averages[parameter]
        state["step"] += 1
        state["lr_max"].clamp_(min=group["lr"])
        weight = state["lr_max"] ** group["weight_lr_power"]
        state["weight_sum"] += weight
        share = (weight / state["weight_sum"]).item() if state["weight_sum"] else 0.0
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"].item())).sqrt_().add_(group["eps"])
        direction = gradient / root + group["weight_decay"] * parameter
        state["z"].sub_(direction, alpha=group["lr"])
        average.lerp_(state["z"], share)
        parameter.copy_(torch.lerp(state["z"], average, beta1))


def build_schedule_free(
    config: ScheduleFreeAdamWConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """Build schedule-free AdamW over all named parameters."""
    defaults = {
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_lr_power": config.weight_lr_power,
    }
    return ScheduleFreeAdamW(build_param_groups(config, parameters), defaults)
