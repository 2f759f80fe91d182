"""Adam and AdamW: torch's kernels, without the import cost of torch's classes.

That cost is a second of startup. Also AdamW with bf16 states.
"""

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from titanrun.components.optimizers.config import AdamConfig, AdamWConfig
from titanrun.components.optimizers.kernel_adamw import KernelAdamW
from titanrun.components.optimizers.param_groups import build_param_groups
from titanrun.distributed.dtensor import to_local

# torch's method, without the hooks that torch adds to a class's step at the first instance
adam_step = torch.no_grad()(unwrap(Adam.step))


class EagerAdam(Adam):
    """torch.optim.Adam whose methods are not wrapped for torch.compile.

    The wrappers of `add_param_group` and `step` import torch._dynamo, 1.2 s of CPU time, in runs
    that compile nothing. The wrapped functions are used directly: the updates are torch's, bit for
    bit.
    """

    add_param_group = unwrap(Optimizer.add_param_group)
    step = adam_step


class EagerAdamW(AdamW):
    """torch.optim.AdamW whose methods are not wrapped for torch.compile; see EagerAdam."""

    add_param_group = unwrap(Optimizer.add_param_group)
    step = torch.no_grad()(unwrap(AdamW.step))


class Bfloat16StateAdamW(KernelAdamW):
    """AdamW that stores both running means in bf16 and computes in the dtype of the weight.

    torch's kernels require one dtype for all.
    """

    def has_kernel(self, part: torch.Tensor) -> bool:
        """Return whether there is a kernel for this rank's part of a weight: in fp32 only."""
        return part.dtype == torch.float32 and super().has_kernel(part)

    # torch's signature allows a closure that recomputes the loss, which is not supported here
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter with a gradient."""
        assert closure is None, "gradients are there before a step"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(
        self, parameter: nn.Parameter, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        beta1, beta2 = group["betas"]
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
        state["step"] += 1
        steps = state["step"].item()
        if self.kernels is not None:
            self.kernels.update_adamw(
                *map(to_local, (parameter, gradient, state["exp_avg"], state["exp_avg_sq"])),
                self.kernels.AdamWStep.from_group(group, steps=steps, optimizer=self),
            )
            return
        mean = state["exp_avg"].to(parameter.dtype).lerp_(gradient, 1 - beta1)
        square = (
            state["exp_avg_sq"]
            .to(parameter.dtype)
            .mul_(beta2)
            .addcmul_(gradient, gradient, value=1 - beta2)
        )
        state["exp_avg"].copy_(mean)
        state["exp_avg_sq"].copy_(square)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        root = (square / (1 - beta2**steps)).sqrt_().add_(group["eps"])
        parameter.addcdiv_(mean, root, value=-group["lr"] / (1 - beta1**steps))


def build_adam(config: AdamConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
    """Build Adam over all named parameters."""
    return EagerAdam(build_param_groups(config, parameters), **get_adam_kwargs(config))


def build_adamw(
    config: AdamWConfig, *, parameters: Iterable[tuple[str, nn.Parameter]]
) -> Optimizer:
    """Build AdamW over all named parameters."""
    if config.state_dtype == "bfloat16":
        return Bfloat16StateAdamW(
            build_param_groups(config, parameters),
            {"betas": (config.beta1, config.beta2), "eps": config.eps},
        )
    return EagerAdamW(build_param_groups(config, parameters), **get_adam_kwargs(config))


def get_adam_kwargs(config: AdamConfig | AdamWConfig) -> dict[str, Any]:
    """Return torch's keyword arguments for the settings that all groups share."""
    return {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
        "fused": config.implementation == "fused",
        "foreach": config.implementation == "foreach",
    }
