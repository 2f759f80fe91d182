"""Squared error of the velocity from pictures to noise, as a sum over the pictures' tokens.

Shapes: B samples, I tokens of a picture, C numbers of a token.
"""

from typing import Protocol

from torch import Tensor

from titanrun.components.losses.config import FlowMatchingConfig


class Samples(Protocol):
    """A batch of pictures on their way to noise: the velocities wanted, [B, I, C], and which tokens count, [B, I]."""

    @property
    def target(self) -> Tensor: ...

    @property
    def loss_mask(self) -> Tensor: ...


class FlowMatching:
    """Sum over the tokens that count of the mean squared error of their numbers; whoever calls divides by the tokens of the step."""

    def __init__(self, config: FlowMatchingConfig) -> None:
        self.config = config

    def __call__(self, velocity_BIC: Tensor, batch: Samples) -> Tensor:
        """The sum as one fp32 number."""
        errors_BI = (velocity_BIC.float() - batch.target).square().mean(dim=-1)
        return errors_BI.masked_fill(~batch.loss_mask, 0.0).sum()
