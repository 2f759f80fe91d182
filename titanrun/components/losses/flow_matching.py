"""Squared error of the velocity from images to noise, as a sum over the images' tokens.

Shapes: B samples, I tokens of an image, C numbers of a token.
"""

from typing import Protocol

from torch import Tensor

from titanrun.components.losses.config import FlowMatchingConfig


class FlowMatchingBatch(Protocol):
    """Batch of noised images."""

    @property
    def target(self) -> Tensor:
        """Target velocities, [B, I, C]."""

    @property
    def loss_mask(self) -> Tensor:
        """Mask of the tokens in the loss, [B, I] bool."""


class FlowMatchingLoss:
    """Sum over the tokens in the loss of the mean squared error of their numbers.

    The caller divides by the number of tokens of the step.
    """

    def __init__(self, config: FlowMatchingConfig) -> None:
        self.config = config

    def __call__(self, velocity_BIC: Tensor, batch: FlowMatchingBatch) -> Tensor:
        """Return the sum as an fp32 scalar."""
        errors_BI = (velocity_BIC.float() - batch.target).square().mean(dim=-1)
        return errors_BI.masked_fill(~batch.loss_mask, 0.0).sum()
