"""The optimizer slot and its choices."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Interval

from titanrun.config.base import ComponentConfig
from titanrun.config.fields import numerics, performance
from titanrun.config.types import NonNegativeFloat, PositiveFloat

Beta = Annotated[float, Interval(ge=0, lt=1)]


class OptimizerConfig(ComponentConfig):
    """What turns gradients into weight updates."""

    slot: ClassVar = "optimizer"
    is_slot: ClassVar = True
    default_name: ClassVar = "adamw"
    states: ClassVar[int] = 0
    """Tensors of a weight's size and type that the optimizer keeps for it."""


class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay (https://arxiv.org/abs/1711.05101)."""

    name: Literal["adamw"] = numerics("adamw")
    builds: ClassVar = "titanrun.components.optimizers.adamw:build_adamw"
    states: ClassVar[int] = 2
    lr: PositiveFloat = numerics(8e-4)
    """Peak learning rate."""
    beta1: Beta = numerics(0.9)
    """Decay of the running mean of gradients."""
    beta2: Beta = numerics(0.95)
    """Decay of the running mean of squared gradients."""
    eps: PositiveFloat = numerics(1e-8)
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = numerics(0.1)
    """Decoupled decay, on every parameter."""
    implementation: Literal["fused", "foreach", "for-loop"] = performance("fused")
    """Which of torch's kernels steps; they differ by rounding."""
    early_step_in_backward: bool = performance(False)
    """Whether each parameter is updated as soon as its gradient is there, to free the gradient; rules out clipping."""
