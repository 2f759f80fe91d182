"""Auxiliary-loss-free load balancing: a bias shifts the router's choice.

Described in https://arxiv.org/abs/2408.15664.

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


class LoadBalancer:
    """Update of the routing biases of a model's layers, once per optimizer step.

    It also keeps the imbalance of the step.

    Args:
        layers: mixture-of-experts layers of this rank, in order.
        all_reduce_sum: sums the counts [L, E] over all ranks that saw other tokens.
        all_reduce_max: maximum of a value over all ranks that hold other layers.
        updates_bias: whether biases change. Those of a frozen model do not.
    """

    def __init__(
        self,
        layers: Sequence[Moe],
        *,
        all_reduce_sum: Reduce = lambda counts_LE: counts_LE,
        all_reduce_max: Reduce = lambda values: values,
        updates_bias: bool = True,
    ) -> None:
        self.layers = layers
        self.all_reduce_sum = all_reduce_sum
        self.all_reduce_max = all_reduce_max
        self.updates_bias = updates_bias
        self.counts_LE: Tensor | None = None

    def register_step_hook(self, optimizer: Optimizer, record: Record) -> None:
        """Update the biases before every step of the optimizer from now on.

        A step that the optimizer refuses by its attribute `found_inf` leaves them as they are.
        `record(name, value, reduce)` gets the metrics of each step.
        """

        def before_step(*_: object) -> None:
            self.update(found_inf=getattr(optimizer, "found_inf", None))
            for name, value in self.get_metrics().items():
                record(name, value, "mean")

        optimizer.register_step_pre_hook(before_step)

    @torch.no_grad()
    def update(self, *, found_inf: Tensor | None = None) -> None:
        """Shift every bias towards the experts with too few tokens, and reset the counters.

        If `found_inf`, a scalar on the device, is 1, the biases stay.
        """
        if not self.layers:
            return
        counts_LE = self.all_reduce_sum(
            torch.stack([layer.tokens_per_expert for layer in self.layers])
        )
        self.counts_LE = counts_LE
        for layer, counts_E in zip(self.layers, counts_LE, strict=True):
            layer.tokens_per_expert.zero_()
            if self.updates_bias and layer.expert_bias is not None:
                step_E = layer.config.load_balance_coeff * (counts_E.mean() - counts_E).sign()
                step_E -= step_E.mean()
                layer.expert_bias += step_E if found_inf is None else step_E * (1 - found_inf)

    def get_metrics(self) -> dict[str, Tensor]:
        """Return imbalance and extremes of tokens per expert of the last step.

        Imbalance is the busiest expert's tokens divided by the mean (1 is even) in the worst layer.
        """
        imbalance, most, least = self.all_reduce_max(self._compute_extremes())
        return {
            "moe/imbalance": imbalance,
            "moe/most_tokens_per_expert": most,
            "moe/least_tokens_per_expert": -least,
        }

    def _compute_extremes(self) -> Tensor:
        """Return the largest imbalance, the most tokens and the fewest, negated, of this rank.

        Without layers the values do not change a maximum.
        """
        if self.counts_LE is None:
            return torch.full((3,), -torch.inf)
        imbalance_L = self.counts_LE.amax(1) / self.counts_LE.mean(1).clamp(min=1)
        return torch.stack([imbalance_L.max(), self.counts_LE.max(), -self.counts_LE.min()])


def get_moe_layers(model: nn.Module) -> list[Moe]:
    """Return the mixture-of-experts layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, Moe)]
