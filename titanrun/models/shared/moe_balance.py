"""Keeps experts evenly busy without a loss of its own: a bias moves the router's choice (https://arxiv.org/abs/2408.15664).

Shapes: L layers, E experts.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from titanrun.models.shared.moe import Moe

Reduce = Callable[[Tensor], Tensor]
Record = Callable[[str, Tensor, Literal["mean"]], None]


class ExpertBalance:
    """Moves the biases of a model's layers once an optimizer step, and remembers how unequal the step was.

    Args:
        layers: the mixture-of-experts layers of this rank, in order.
        reduce: sums the counts [L, E] over all ranks that saw other tokens.
        largest: the largest of a value over all ranks that hold other layers.
        moves: whether biases change; those of a frozen model do not.
    """

    def __init__(
        self,
        layers: Sequence[Moe],
        *,
        reduce: Reduce = lambda counts_LE: counts_LE,
        largest: Reduce = lambda values: values,
        moves: bool = True,
    ) -> None:
        self.layers = layers
        self.reduce = reduce
        self.largest = largest
        self.moves = moves
        self.counts_LE: Tensor | None = None

    def watch(self, optimizer: Optimizer, record: Record) -> None:
        """Take part in every step of the optimizer from now on, and tell `record(name, value, reduce)` how even it was."""

        def before_step(*_: object) -> None:
            self.update()
            for name, value in self.readings().items():
                record(name, value, "mean")

        optimizer.register_step_pre_hook(before_step)

    @torch.no_grad()
    def update(self) -> None:
        """One step of every bias towards the experts with too few tokens; the counters start again at zero."""
        if not self.layers:
            return
        counts_LE = self.reduce(torch.stack([layer.tokens_per_expert for layer in self.layers]))
        self.counts_LE = counts_LE
        for layer, counts_E in zip(self.layers, counts_LE, strict=True):
            layer.tokens_per_expert.zero_()
            if self.moves and layer.expert_bias is not None:
                step_E = layer.config.load_balance_coeff * (counts_E.mean() - counts_E).sign()
                layer.expert_bias += step_E - step_E.mean()

    def readings(self) -> dict[str, Tensor]:
        """Of the last step: the busiest expert's tokens over the mean (1 is even) in the worst layer, and tokens per expert."""
        imbalance, most, least = self.largest(self._extremes())
        return {
            "moe/imbalance": imbalance,
            "moe/most_tokens_per_expert": most,
            "moe/least_tokens_per_expert": -least,
        }

    def _extremes(self) -> Tensor:
        """The largest imbalance, the most tokens and the fewest, negated, of this rank's layers; what changes no maximum without layers."""
        if self.counts_LE is None:
            return torch.full((3,), -torch.inf)
        imbalance_L = self.counts_LE.amax(1) / self.counts_LE.mean(1).clamp(min=1)
        return torch.stack([imbalance_L.max(), self.counts_LE.max(), -self.counts_LE.min()])


def moe_layers(model: nn.Module) -> list[Moe]:
    """The mixture-of-experts layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Moe)]
