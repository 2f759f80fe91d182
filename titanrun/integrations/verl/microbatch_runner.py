"""Passes of verl's microbatches through the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from titanrun.config.problems import problem_error
from titanrun.integrations.verl.verl_batches import (
    MICROBATCH_KEY,
    VerlBatchLayout,
    compute_token_outputs,
)
from titanrun.integrations.verl.verl_sequences import (
    VerlBatch,
    get_sequences,
    restore_batch_layout,
)

if TYPE_CHECKING:
    from titanrun.integrations.verl.verl_engine import VerlEngine

LossFunction = Callable[..., tuple[Tensor, dict[str, Any]]]


def check_sequence_lengths(lengths: Sequence[Sequence[int]], limit: int) -> None:
    """Raise ProblemsFound if a sequence of a microbatch has more positions than the model."""
    longest = max(max(each) for each in lengths)
    if longest > limit:
        raise problem_error(
            "usage",
            f"a sequence of {longest:,} tokens exceeds max_seq_len ({limit:,})",
            hint="set max_seq_len in verl's engine config, or training.seq_len of the recipe",
        )


@dataclass(slots=True)
class MicrobatchRunner:
    """Runner of microbatches on the device, with the outputs, loss and metrics of each one."""

    engine: "VerlEngine"
    microbatches: list[VerlBatch]
    loss_function: LossFunction | None
    outputs: dict[int, dict[str, list[Tensor]]] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)
    metrics: dict[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def batch_layout(self) -> VerlBatchLayout:
        """Layout of batches: packed if attention separates documents by positions."""
        attention = getattr(self.engine.handle.recipe.model, "attention", None)
        return VerlBatchLayout(
            is_packed=getattr(attention, "documents", None) == "positions",
            document_rule=self.engine.document_rule,
        )

    def run(self, *, forward_only: bool, uses_pipeline: bool) -> None:
        """Run all microbatches; with `uses_pipeline` together and in one shape."""
        handle = self.engine.handle
        lengths = [
            [len(sequence) for sequence in get_sequences(part)] for part in self.microbatches
        ]
        check_sequence_lengths(lengths, handle.recipe.training.seq_len)
        widths = [sum(each) if self.batch_layout.is_packed else max(each) for each in lengths]
        rows = max(map(len, lengths)) if uses_pipeline else 0
        # tensor-parallel ranks share the tokens of a sequence
        multiple = self.engine._get_tp_size()
        widths = [
            -(-(max(widths) if uses_pipeline else width) // multiple) * multiple for width in widths
        ]
        batches = [
            self.batch_layout.build_batch(part, number, width=width, min_batch_size=rows)
            for number, (part, width) in enumerate(zip(self.microbatches, widths, strict=True))
        ]
        if forward_only:
            handle.engine.evaluate_loss(batches, loss=self._compute_loss, are_microbatches=True)
        else:
            divisor = torch.tensor(handle.dp_size, device=handle.engine.device)
            handle.engine.forward_backward(
                batches, loss=self._compute_loss, normalizer=divisor, are_microbatches=True
            )

    def _compute_loss(self, logits_NTV: Tensor, batch: Any) -> Tensor:
        number = int(batch.extra[MICROBATCH_KEY][0, 0])
        part = self.microbatches[number]
        found = compute_token_outputs(
            logits_NTV, batch, part, self.batch_layout, self.engine.entropy
        )
        self.outputs[number] = {
            name: [value.detach() for value in values] for name, values in found.items()
        }
        if self.loss_function is None:
            self.losses[number], self.metrics[number] = 1.0, {}
            return torch.zeros((), device=self.engine.handle.engine.device)
        model_output = {name: restore_batch_layout(values, part) for name, values in found.items()}
        loss, metrics = self.loss_function(
            model_output=model_output, data=part, dp_group=self.engine.get_data_parallel_group()
        )
        self.losses[number], self.metrics[number] = float(loss.detach()), metrics
        return loss

    def merge_outputs(self, indices: list[list[int]], data: VerlBatch) -> dict[str, Any]:
        """Return outputs in the order of `data`, and losses and metrics by microbatch."""
        order = [row for number in self.outputs for row in indices[number]]
        model_output = {}
        for name in self.outputs[0] if self.outputs else ():
            values = [value for found in self.outputs.values() for value in found[name]]
            by_row = dict(zip(order, values, strict=True))
            model_output[name] = restore_batch_layout([by_row[row] for row in sorted(by_row)], data)
        metrics: dict[str, Any] = {}
        for number in sorted(self.metrics):
            for name, value in self.metrics[number].items():
                # verl's Metric collects its own values, and knows how to reduce them
                is_metric = hasattr(value, "init_list")
                metrics.setdefault(name, value.init_list() if is_metric else []).append(value)
        return {
            "model_output": model_output,
            "loss": [self.losses[number] for number in sorted(self.losses)],
            "metrics": metrics,
        }
