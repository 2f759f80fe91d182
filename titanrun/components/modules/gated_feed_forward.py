"""Feed-forward layer whose gate has another activation.

Shapes: B batch, T tokens of a sequence, D model width, F hidden width.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from titanrun.components.modules.config import GatedFeedForwardConfig
from titanrun.config.problems import problem_error

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "relu": F.relu,
    "squared_relu": lambda gate: F.relu(gate).square(),
    "sigmoid": F.sigmoid,
}
WEIGHT_NAMES = ("w1", "w2", "w3")


class GatedFeedForward(nn.Module):
    """Gated layer w2(activation(w1 x) * w3 x), with the matrices of the replaced layer.

    Raises:
        ProblemsFound: If the replaced layer does not have them.
    """

    def __init__(self, config: GatedFeedForwardConfig, *, replaced: nn.Module) -> None:
        super().__init__()
        if {name for name, _ in replaced.named_children()} != set(WEIGHT_NAMES):
            message = (
                "gated_feed_forward replaces layers of w1, w2 and w3, "
                f"but this is {type(replaced).__name__}"
            )
            raise problem_error(
                "conflict", message, hint="match feed-forward layers, such as layers.*.feed_forward"
            )
        self.activation = ACTIVATIONS[config.activation]
        self.w1, self.w2, self.w3 = (replaced.get_submodule(part) for part in WEIGHT_NAMES)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the output of the layer."""
        h_BTF = self.activation(self.w1(x_BTD)) * self.w3(x_BTD)
        y_BTD: Tensor = self.w2(h_BTF)
        return y_BTD
