"""Hook that logs how many tokens each expert of each layer gets.

Shapes: L layers of the whole model, E experts.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from titanrun.models.shared.moe import Moe
from titanrun.training.engine_outputs import StepOutput
from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop

LAYER_NUMBER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")
Reduce = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class ExpertLoadHook(TrainHook):
    """Mean tokens per expert and step since the last logged line. Skipped steps do not count.

    Args:
        layers: the layers with experts on this rank, by their number in the whole model.
        all_reduce_sum: sums counts over all ranks that saw other tokens.
        all_reduce_max: maximum over all ranks that hold other layers.
    """

    layers: dict[int, Moe]
    num_layers: int
    num_experts: int
    all_reduce_sum: Reduce = lambda counts_LE: counts_LE
    all_reduce_max: Reduce = lambda counts_LE: counts_LE
    _total_LE: Tensor | None = field(default=None, init=False)
    _last_LE: Tensor | None = field(default=None, init=False)
    _num_steps: int = field(default=0, init=False)

    @torch.no_grad()
    def on_pre_optimizer_step(self, loop: "TrainLoop", inp: StepInput, output: StepOutput) -> None:
        """Add the counts of this step, which the optimizer step resets."""
        # layers of other ranks are negative, so that a maximum ignores them
        counts_LE = torch.full((self.num_layers, self.num_experts), -1.0, device=loop.engine.device)
        for number, layer in self.layers.items():
            counts_LE[number] = layer.tokens_per_expert
        self._last_LE = counts_LE
        self._total_LE = counts_LE if self._total_LE is None else self._total_LE + counts_LE
        self._num_steps += 1

    def on_update_rejected(
        self, loop: "TrainLoop", inp: StepInput, output: StepOutput, grad_norm: Tensor
    ) -> None:
        """Take back the counts of this step."""
        assert self._total_LE is not None and self._last_LE is not None
        self._total_LE = self._total_LE - self._last_LE
        self._num_steps -= 1

    def on_rollback(self, loop: "TrainLoop", step: int) -> None:
        """Discard everything since the last logged line."""
        self._total_LE, self._num_steps = None, 0

    def on_log(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the means by layer and expert. Collective."""
        total_LE, num_steps = self._total_LE, self._num_steps
        self._total_LE, self._num_steps = None, 0
        if total_LE is None or num_steps == 0:
            return {}
        mean_LE = self.all_reduce_max(self.all_reduce_sum(total_LE)) / num_steps
        return {
            f"moe/tokens_per_expert/layer_{layer}/expert_{expert}": count
            for layer, counts_E in enumerate(mean_LE.tolist())
            for expert, count in enumerate(counts_E)
            if count >= 0
        }


def number_moe_layers(model: nn.Module) -> dict[int, Moe]:
    """Return the layers with experts of a model, or of its pipeline stages, by their number."""
    found: dict[int, Moe] = {}
    for name, module in model.named_modules():
        match = LAYER_NUMBER.search(f"{name}.")
        if isinstance(module, Moe) and match is not None:
            found[int(match[1])] = module
    return found
