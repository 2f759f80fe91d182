"""A feed-forward layer whose gate has another activation.

Shapes: B batch, T tokens of a row, D model width, F hidden width.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.modules.config import GatedFeedForwardConfig
from titanrun.config.problems import fail

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "squared_relu": lambda gate: F.relu(gate).square(),
    "sigmoid": F.sigmoid,
}
PARTS = ("w1", "w2", "w3")


class GatedFeedForward(nn.Module):
    """w2(activation(w1 x) * w3 x), with the matrices of the layer that it stands for. Raises a problem where that has none."""

    def __init__(self, config: GatedFeedForwardConfig, *, replaced: nn.Module) -> None:
        super().__init__()
        if {name for name, _ in replaced.named_children()} != set(PARTS):
            message = f"gated_feed_forward stands for layers of w1, w2 and w3, and this is {type(replaced).__name__}"
            raise fail(
                "conflict", message, help="match feed-forward layers, such as layers.*.feed_forward"
            )
        self.activation = ACTIVATIONS[config.activation]
        self.w1, self.w2, self.w3 = replaced.w1, replaced.w2, replaced.w3

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = self.activation(self.w1(x_BTD)) * self.w3(x_BTD)
        return self.w2(h_BTF)
