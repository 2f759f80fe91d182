"""Hook that logs how many tokens each expert of each layer gets.

Shapes: L layers of the whole model, E experts.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
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
    """Load of the experts since the last logged line. Skipped steps do not count.

    Counts are of the rows that are trained: not of validation, of reference models, nor of forward
    passes that are computed again.

    Args:
        layers: the layers with experts on this rank, by their number in the whole model.
        num_layers: number of layers of the whole model.
        num_experts: routed experts of a layer.
        file: file of the counts of each logged step. None on ranks other than the first.
        logs_each_expert: whether to log the mean tokens of each expert, too.
        generator_layers: layers of the model that generates completions in this process. Each
            forward pass counts there.
        all_reduce_sum: sums counts over all ranks that saw other tokens.
        all_reduce_max: maximum over all ranks that hold other layers.
    """

    layers: dict[int, Moe]
    num_layers: int
    num_experts: int
    file: Path | None = None
    logs_each_expert: bool = False
    generator_layers: dict[int, Moe] = field(default_factory=dict)
    all_reduce_sum: Reduce = lambda counts_LE: counts_LE
    all_reduce_max: Reduce = lambda counts_LE: counts_LE
    _total_LE: Tensor | None = field(default=None, init=False)
    _last_LE: Tensor | None = field(default=None, init=False)
    _num_steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        for layer in self.generator_layers.values():
            layer.counts_inference = True

    @torch.no_grad()
    def on_pre_optimizer_step(self, loop: "TrainLoop", inp: StepInput, output: StepOutput) -> None:
        """Add the counts of this step, which the optimizer step resets."""
        counts_LE = self._stack_counts(self.layers, loop.engine.device)
        self._last_LE = counts_LE
        self._total_LE = counts_LE if self._total_LE is None else self._total_LE + counts_LE
        self._num_steps += 1

    def on_update_rejected(
        self, loop: "TrainLoop", inp: StepInput, output: StepOutput, grad_norm: Tensor
    ) -> None:
        """Take back the counts of this step."""
        assert self._total_LE is not None and self._last_LE is not None
        self._total_LE = self._total_LE - self._last_LE
        self._last_LE = None
        self._num_steps -= 1

    def on_rollback(self, loop: "TrainLoop", step: int) -> None:
        """Discard everything since the last logged line."""
        self._total_LE, self._last_LE, self._num_steps = None, None, 0

    @torch.no_grad()
    def on_log(self, loop: "TrainLoop") -> dict[str, float]:
        """Return the metrics of each layer, and write the counts of the step. Collective."""
        total_LE, last_LE, num_steps = self._total_LE, self._last_LE, self._num_steps
        self._total_LE, self._last_LE, self._num_steps = None, None, 0
        values: dict[str, float] = {}
        if total_LE is not None and num_steps:
            total_LE = self._reduce(total_LE)
            values |= describe_loads("moe", total_LE)
            if self.logs_each_expert:
                values |= list_tokens_per_expert(total_LE / num_steps)
        if last_LE is not None:
            last_LE = self._reduce(last_LE)
            self._write_record(loop.state.step, last_LE)
            for number, counts_E in enumerate(last_LE.tolist()):
                if min(counts_E) >= 0:
                    name = f"moe/layer_{number}/tokens_per_expert"
                    loop.metrics.log_histogram(loop.state.step, name, list(map(int, counts_E)))
        if self.generator_layers:
            counts_LE = self._stack_counts(self.generator_layers, loop.engine.device)
            for layer in self.generator_layers.values():
                layer.tokens_per_expert.zero_()
            values |= describe_loads("rl/generator_moe", self._reduce(counts_LE))
        return values

    def _stack_counts(self, layers: dict[int, Moe], device: torch.device) -> Tensor:
        # layers of other ranks are negative, so that a maximum ignores them
        counts_LE = torch.full((self.num_layers, self.num_experts), -1.0, device=device)
        for number, layer in layers.items():
            counts_LE[number] = layer.tokens_per_expert
        return counts_LE

    def _reduce(self, counts_LE: Tensor) -> Tensor:
        return self.all_reduce_max(self.all_reduce_sum(counts_LE.clone()))

    def _write_record(self, step: int, counts_LE: Tensor) -> None:
        """Append the counts of a step. Layers without experts are null."""
        if self.file is None:
            return
        counts = [
            None if min(counts_E) < 0 else [int(count) for count in counts_E]
            for counts_E in counts_LE.tolist()
        ]
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "counts": counts}) + "\n")


def describe_loads(prefix: str, counts_LE: Tensor) -> dict[str, float]:
    """Return the metrics of each layer with experts.

    They are the largest and the smallest share of an expert, the entropy of the shares in nats, and
    the number of experts without any token.
    """
    values: dict[str, float] = {}
    for layer, counts_E in enumerate(counts_LE.double().cpu()):
        if counts_E.min() < 0 or counts_E.sum() == 0:
            continue
        shares_E = counts_E / counts_E.sum()
        found = {
            "share_max": shares_E.max(),
            "share_min": shares_E.min(),
            "entropy": torch.special.entr(shares_E).sum(),
            "dead_experts": (counts_E == 0).sum(),
        }
        values |= {f"{prefix}/layer_{layer}/{name}": float(value) for name, value in found.items()}
    return values


def list_tokens_per_expert(mean_LE: Tensor) -> dict[str, float]:
    """Return the mean tokens of each expert by layer and expert."""
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
