"""AdamW that updates a weight in one Triton kernel, where Triton runs, and else in Python."""

from functools import cached_property
from importlib import import_module
from inspect import unwrap
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from titanrun.distributed.device import is_accelerator
from titanrun.distributed.dtensor import to_local


class KernelAdamW(Optimizer):
    """Optimizer whose `kernels` are the module of Triton kernels, or None.

    Its kernels read `grad_scale` and `found_inf`, two attributes of the optimizer, as torch's fused
    kernels do. The formulas in Python do not.
    """

    add_param_group = unwrap(Optimizer.add_param_group)

    @cached_property
    def kernels(self) -> Any:
        """Module of kernels. None if some weight is not on a device that Triton compiles for."""
        weights = (weight for group in self.param_groups for weight in group["params"])
        if not all(self.has_kernel(to_local(weight)) for weight in weights) or not has_triton():
            return None
        return import_module("titanrun.components.optimizers.adamw_kernels")

    def has_kernel(self, part: Tensor) -> bool:
        """Return whether there is a kernel for this rank's part of a weight."""
        return is_accelerator(part.device) and part.is_contiguous()


def has_triton() -> bool:
    """Return whether Triton is installed and compiles for the accelerator."""
    # imported by name: a CPU never needs it
    return bool(import_module("torch.utils._triton").has_triton())
