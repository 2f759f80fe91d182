"""Hook that adds the outputs of a reference model to batches."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from titanrun.training.train_hook import StepInput, TrainHook

if TYPE_CHECKING:
    from titanrun.training.loop import TrainLoop


@dataclass(slots=True)
class ReferenceHook(TrainHook):
    """Addition of the reference outputs needed by the loss to each batch."""

    add_reference: Callable[[Any], Any]

    def on_input_ready(self, loop: "TrainLoop", inp: StepInput) -> StepInput:
        """Return the input with the reference outputs added.

        Collective if the reference is sharded.
        """
        return replace(inp, batches=[self.add_reference(batch) for batch in inp.batches])
