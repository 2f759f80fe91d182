"""Keeps experts evenly busy without a loss of its own: a bias moves the router's choice (https://arxiv.org/abs/2408.15664).

Shapes: L layers, E experts.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.models.shared.moe import Moe

Reduce = Callable[[Tensor], Tensor]


class ExpertBalance:
    """Moves the biases of a model's layers once an optimizer step, and remembers how unequal the step was.

    Args:
        layers: the mixture-of-experts layers of this rank, in order.
        reduce: sums the counts [L, E] over all ranks that saw other tokens.
        passes: how often a step's tokens are counted: 2 where blocks are computed again in the backward pass.
    """

    def __init__(self, layers: Sequence[Moe], *, reduce: Reduce = lambda counts_LE: counts_LE, passes: int = 1) -> None:
        self.layers = layers
        self.reduce = reduce
        self.passes = passes
        self.counts_LE: Tensor | None = None

    def watch(self, optimizer: Optimizer) -> None:
        """Take part in every step of the optimizer from now on."""
        optimizer.register_step_pre_hook(lambda *_: self.update())

    @torch.no_grad()
    def update(self) -> None:
        """One step of every bias towards the experts with too few tokens; the counters start again at zero."""
        counts_LE = self.reduce(torch.stack([layer.tokens_per_expert for layer in self.layers])) // self.passes
        self.counts_LE = counts_LE
        for layer, counts_E in zip(self.layers, counts_LE, strict=True):
            layer.tokens_per_expert.zero_()
            if layer.expert_bias is not None:
                step_E = layer.config.load_balance_coeff * (counts_E.mean() - counts_E).sign()
                layer.expert_bias += step_E - step_E.mean()

    def readings(self) -> dict[str, Tensor]:
        """Of the last step: the busiest expert's tokens over the mean, worst layer and mean of layers (1 is even)."""
        if self.counts_LE is None:
            return {}
        imbalance_L = self.counts_LE.amax(1) / self.counts_LE.mean(1).clamp(min=1)
        return {"moe/max_imbalance": imbalance_L.max(), "moe/mean_imbalance": imbalance_L.mean()}


def moe_layers(model: nn.Module) -> list[Moe]:
    """The mixture-of-experts layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Moe)]
