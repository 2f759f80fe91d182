"""A feed-forward layer with another gate."""

import torch
from torch import Tensor, nn

from pebble.configs import SquaredConfig


class Squared(nn.Module):
    """w2(relu(w1 x)^2 * w3 x), with the matrices of the layer that it stands for."""

    def __init__(self, config: SquaredConfig, *, replaced: nn.Module) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = replaced.w1, replaced.w2, replaced.w3

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The layer's output."""
        return self.w2(torch.relu(self.w1(x_BTD)).square() * self.w3(x_BTD))
